"""The paper's appendix: required density by step and layer."""

from __future__ import annotations

import numpy as np

from svoo.studies.base import Cell, Job, Plot, Section, Table, as_png
from svoo.studies.densities import density_jobs, read_densities
from svoo.studies.lab import MASSES, Lab
from svoo.studies.results import Results


class StepsStudy:
    """Required density by step and layer."""

    name = "steps"
    title = "Density by step"
    paper = "appendix, second figure"
    about = "How required density changes while a video is denoised, layer by layer."

    def jobs(self, lab: Lab) -> list[Job]:
        """Return one measurement per input: the same as that of `layers`."""
        return density_jobs(lab, "by_step")

    def show(self, results: Results) -> Section:
        """Return a plot per mass, and the deviations."""
        from matplotlib.figure import Figure

        density = read_densities(results, self.name, "by_step")
        sigma = read_densities(results, self.name, "sigma")
        if density is None or sigma is None:
            return Section()
        rows, parts = [], []
        for index, mass in enumerate(MASSES):
            here = density[..., index]  # [prompts, steps, layers]
            steps, layers = here.std(axis=1).mean(), here.mean(axis=(0, 1)).std()
            rows.append([Cell(f"{mass:.0%}"), Cell(f"{steps:.4f}"), Cell(f"{layers:.4f}")])
            figure = Figure(figsize=(7, 4), layout="constrained")
            axes = figure.subplots()
            for layer in range(here.shape[2]):
                line = here[:, :, layer]
                axes.plot(sigma[0], line.mean(axis=0), marker=".", label=f"layer {layer}")
                axes.fill_between(sigma[0], line.min(axis=0), line.max(axis=0), alpha=0.15)
            axes.invert_xaxis()
            axes.set(xlabel="noise level (a run goes to the right)", ylabel="density")
            axes.set_ylim(0, min(1.0, float(np.max(here)) * 1.1))
            axes.legend(fontsize=7, ncols=2)
            title = f"Density at {mass:.0%} of the mass by step"
            parts.append(Plot(f"steps-{mass:g}", title, as_png(figure), "Bands are over inputs."))
        columns = ["mass", "std over steps", "std over layers"]
        note = f"{len(density)} prompts."
        return Section((), [Table("Steps beside layers", columns, rows, note), *parts])
