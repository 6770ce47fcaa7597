"""`Profile`: required density, measured per input, step, layer, head and mass, and how it was
measured."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from svoo.core.validate import check_mass
from svoo.errors import ConfigError, ProfileError
from svoo.storage import is_folder, write_atomically

FORMAT = "svoo-profile-1"
PROFILE_MASS = 0.95  # the mass that budgets are taken at, as in the paper
MUST_AGREE = ("model", "width", "height", "frames")  # provenance that merged profiles must share
_AXES = "inputs, steps, layers, heads, masses"


@dataclass(frozen=True, eq=False)
class Profile:
    """Measured required density `[inputs, steps, layers, heads, masses]`.

    The inputs are stored one by one, so that any quantile over them can be taken. sigma `[steps]`
    is the noise level of each step, stage `[steps]` the expert that ran it, masses `[masses]` the
    masses that were measured. `provenance` says which model, size and library version made it.
    `error`, shaped like density, is the standard error from sampling rows; None: not known.
    """

    density: Tensor
    sigma: Tensor
    stage: Tensor
    masses: Tensor
    provenance: Mapping[str, str] = field(default_factory=dict)
    error: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse tensors whose shapes do not agree, and values out of range."""
        if self.density.ndim != 5 or 0 in self.density.shape:
            raise ProfileError(f"density must be [{_AXES}], got {list(self.density.shape)}")
        steps, masses = self.density.shape[1], self.density.shape[4]
        for name, tensor, length in (
            ("sigma", self.sigma, steps),
            ("stage", self.stage, steps),
            ("masses", self.masses, masses),
        ):
            if tensor.shape != (length,):
                raise ProfileError(f"{name} must be [{length}], got {list(tensor.shape)}")
            if not bool(torch.isfinite(tensor.double()).all()):
                raise ProfileError(f"{name} holds NaN or infinity")
        if bool((self.stage < 0).any()):
            raise ProfileError(f"stage must not be negative, got {self.stage.tolist()}")
        if not bool(((self.density >= 0) & (self.density <= 1)).all()):
            raise ProfileError("density holds values outside [0, 1] or NaN")
        if not bool(((self.masses > 0) & (self.masses <= 1)).all()):
            raise ProfileError(f"masses must be in (0, 1], got {self.masses.tolist()}")
        for name, fact in self.provenance.items():
            kinds = {unicodedata.category(letter) for letter in name + fact}
            if kinds & {"Cc", "Cs"}:
                raise ProfileError(
                    "provenance holds control characters or halves of characters: "
                    f"{name!a} is {fact!a}"
                )
        if self.error is None:
            return
        if self.error.shape != self.density.shape:
            raise ProfileError(f"error must be like density, got {list(self.error.shape)}")
        if not bool((self.error.isfinite() & (self.error >= 0)).all()):
            raise ProfileError("error holds negative values, infinity or NaN")

    @property
    def inputs(self) -> int:
        """Number of calibration inputs."""
        return self.density.shape[0]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.density.shape[2]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.density.shape[3]

    def check_fits(self, layers: int, heads: int) -> None:
        """Refuse a model with another number of layers or heads."""
        if (self.layers, self.heads) != (layers, heads):
            raise ProfileError(
                f"the profile has {self.layers} layers x {self.heads} heads, the model has "
                f"{layers} x {heads}"
            )

    def check_stages(self, stages: int) -> None:
        """Refuse a pipeline whose stages (experts) are not the measured ones, 0 .. stages - 1."""
        measured = sorted(set(self.stage.tolist()))
        if measured != list(range(stages)):
            raise ProfileError(
                f"the profile has {len(measured)} stages (experts), numbers {measured}; the "
                f"pipeline has {stages}"
            )

    def budgets(
        self,
        mass: float = 0.95,
        quantile: float = 0.95,
        over: Literal["gaussian", "max", "mean"] = "gaussian",
    ) -> Tensor:
        """Return the fraction to keep, `[steps, layers, heads]`: an upper quantile of the inputs.

        `over`: "gaussian" takes mean + z * std, with z the normal quantile (the paper; std is 0
        for one input), "max" and "mean" the largest and the mean input. Clipped to 0 .. 1. The
        mass must be one that was measured.
        """
        check_mass(mass)
        if not 0 < quantile < 1:
            raise ConfigError(f"quantile must be in (0, 1), got {quantile!r}")
        density = self.at_mass(mass).double()
        if over == "max":
            budget = density.amax(dim=0)
        elif over == "mean":
            budget = density.mean(dim=0)
        elif over == "gaussian":
            z = torch.special.ndtri(torch.tensor(quantile, dtype=torch.float64))
            spread = density.std(dim=0, correction=0) if len(density) > 1 else 0.0
            budget = density.mean(dim=0) + z * spread
        else:
            raise ConfigError(f"over must be gaussian, max or mean, got {over!r}")
        return budget.clamp(0, 1).float()

    def at_sigmas(self, sigma: Tensor, stage: Tensor | None = None) -> Profile:
        """Return the profile for a run with other noise levels `sigma` `[steps]`.

        Interpolates linearly over the noise level between measured steps of the same stage; beyond
        the measured range it takes the nearest step. `stage` `[steps]`; None: all are stage 0.
        """
        stage = torch.zeros(len(sigma), dtype=torch.int64) if stage is None else stage
        neighbours = []  # for each step: the measured steps below and above, and how far between
        for level, expert in zip(sigma.double().tolist(), stage.tolist(), strict=True):
            here = (self.stage == expert).nonzero().flatten()
            if not len(here):
                known = sorted(set(self.stage.tolist()))
                raise ProfileError(f"the profile has no step of stage {expert}, only of {known}")
            here = here[self.sigma[here].argsort()]
            levels = self.sigma[here].double()
            above = int(torch.searchsorted(levels, level).clamp(0, len(here) - 1))
            below = max(0, above - 1) if level < float(levels[above]) else above
            gap = float(levels[above] - levels[below])
            part = (level - float(levels[below])) / gap if gap > 0 else 0.0
            neighbours.append((int(here[below]), int(here[above]), min(1.0, max(0.0, part))))

        def between(table: Tensor) -> Tensor:
            rows = [
                torch.lerp(table[:, low], table[:, high], part) for low, high, part in neighbours
            ]
            return torch.stack(rows, dim=1)

        return Profile(
            between(self.density),
            sigma.clone(),
            stage.clone(),
            self.masses,
            self.provenance,
            None if self.error is None else between(self.error),
        )

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file, completely or not at all. Equal profiles give equal
        bytes."""
        tensors = {
            "density": self.density.float().contiguous(),
            "sigma": self.sigma.double(),
            "stage": self.stage.long(),
            "masses": self.masses.double(),
        }
        if self.error is not None:
            tensors["error"] = self.error.float().contiguous()
        # One metadata entry: safetensors writes several in an order that changes between runs.
        facts = json.dumps({"format": FORMAT, **self.provenance}, sort_keys=True)
        write_atomically(Path(path), save_tensors(tensors, metadata={"svoo": facts}))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a file that `save` wrote; refuse any other, saying what is wrong."""
        path = Path(path)
        try:
            with safe_open(path, "pt") as file:
                # Copied, because memory mapped from a file changes, or vanishes, with the file.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                stored = dict(json.loads((file.metadata() or {}).get("svoo", "{}")))
            facts = {str(name): str(fact) for name, fact in stored.items()}
        except OSError as error:
            reason = "it is a folder" if is_folder(path) else error
            raise ProfileError(f"cannot read the profile {path}: {reason}") from error
        except (
            SafetensorError,
            ValueError,
            TypeError,
            AttributeError,
            KeyError,  # a number format that torch does not have
            RecursionError,  # metadata nested too deep
        ) as error:
            raise ProfileError(f"{path} is not a whole .safetensors file: {error!r}") from error
        if facts.pop("format", None) != FORMAT:
            raise ProfileError(f"{path} is a .safetensors file, but not a {FORMAT} one")
        missing = {"density", "sigma", "stage", "masses"} - tensors.keys()
        if missing:
            raise ProfileError(f"{path} lacks {', '.join(sorted(missing))}")
        if any(tensor.is_complex() for tensor in tensors.values()):
            raise ProfileError(f"{path} holds complex numbers")
        try:
            return cls(
                tensors["density"].float(),
                tensors["sigma"].double(),
                tensors["stage"].long(),
                tensors["masses"].double(),
                facts,
                tensors["error"].float() if "error" in tensors else None,
            )
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from error

    @classmethod
    def from_official_csv(cls, path: str | Path, model: str) -> Profile:
        """Read one of the authors' tables; see `svoo.profiles.authors_csv.read_table`."""
        from svoo.profiles.authors_csv import read_table

        return read_table(Path(path), model)

    def error_at_mass(self, mass: float = 0.95) -> Tensor | None:
        """Return the standard error at one of the measured masses, `[inputs, steps, layers,
        heads]`; None: not known."""
        return None if self.error is None else self.error[..., self._mass_index(mass)]

    def at_mass(self, mass: float = 0.95) -> Tensor:
        """Return the density at one of the measured masses, `[inputs, steps, layers, heads]`."""
        return self.density[..., self._mass_index(mass)]

    def _mass_index(self, mass: float) -> int:
        """Return the index of a measured mass; refuse one that was not measured."""
        near = (self.masses - mass).abs() < 1e-6
        if not bool(near.any()):
            measured = ", ".join(f"{value:g}" for value in self.masses.tolist())
            raise ProfileError(f"the profile has no mass {mass:g}, only {measured}")
        return int(near.nonzero()[0])

    @classmethod
    def merge(cls, profiles: Sequence[Profile]) -> Profile:
        """Return one profile with the inputs of several of the same model, size and steps.

        Where their provenance differs, the facts are joined with "; "; facts of `MUST_AGREE` that
        differ are refused.
        """
        if not profiles:
            raise ProfileError("nothing to merge: give at least one profile")
        first = profiles[0]
        for other in profiles[1:]:
            other.check_fits(first.layers, first.heads)
            for name in ("sigma", "stage", "masses"):
                mine, theirs = getattr(first, name).double(), getattr(other, name).double()
                if mine.shape != theirs.shape or not torch.allclose(mine, theirs):
                    raise ProfileError(
                        f"cannot merge: {name} differs ({mine.tolist()} and {theirs.tolist()})"
                    )
            for name in MUST_AGREE:
                if first.provenance.get(name) != other.provenance.get(name):
                    raise ProfileError(
                        f"cannot merge: {name} is {first.provenance.get(name)!r} in one and "
                        f"{other.provenance.get(name)!r} in another"
                    )
        errors = [profile.error for profile in profiles if profile.error is not None]
        names = dict.fromkeys(name for profile in profiles for name in profile.provenance)
        provenance = {
            name: "; ".join(
                dict.fromkeys(profile.provenance.get(name, "?") for profile in profiles)
            )
            for name in names
        }
        return cls(
            torch.cat([profile.density for profile in profiles]),
            first.sigma,
            first.stage,
            first.masses,
            provenance,
            torch.cat(errors) if len(errors) == len(profiles) else None,
        )


def flow_sigmas(steps: int, shift: float) -> Tensor:
    """Return the noise levels of a flow-matching run, float64 `[steps]`, falling from 1.

    With u falling evenly from 1 to 1 / steps: sigma = shift * u / (1 + (shift - 1) * u).
    """
    even = torch.linspace(1, 0, steps + 1, dtype=torch.float64)[:-1]
    return shift * even / (1 + (shift - 1) * even)
