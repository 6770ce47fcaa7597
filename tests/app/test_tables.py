from dataclasses import replace

import pytest
from making import made_profile
from rich.console import Console

from svoo.app.doctor import Finding
from svoo.app.tables import (
    comparison_tables,
    demo_table,
    doctor_table,
    model_lines,
    profile_data,
    profile_tables,
)
from svoo.catalogue import SEAM_TESTED, models


def printed(*what: object) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(*what, sep="\n", highlight=False)
    return captured.get()


def test_a_profile_shows_the_mass_asked_for_or_its_last() -> None:
    profile = made_profile()
    text = printed(*profile_tables(profile))
    assert "required density at mass 0.95, 3 inputs" in text
    assert "<tiny & mean>" in text
    assert f"mean {float(profile.density[..., 1].mean()):.3f}; standard deviation" in text
    assert "mass 0.9," in printed(*profile_tables(profile, 0.9))
    heads = "  ".join(f"{mean:.3f}" for mean in profile.density[:, :, 0, :, 1].mean(dim=(0, 1)))
    assert heads in text


def test_the_standard_error_is_shown_with_its_maximum_or_as_unknown() -> None:
    profile = made_profile()
    text = " ".join(printed(*profile_tables(profile)).split())
    assert profile.error is not None
    error = profile.error[..., 1]
    assert f"of an entry {error.mean():.4f} (at most {error.max():.4f}), of a head" in text
    unknown = " ".join(printed(*profile_tables(replace(profile, error=None))).split())
    assert "standard error unknown" in unknown


def test_the_same_for_programs() -> None:
    profile = made_profile()
    found = profile_data(profile)
    assert found["mass"] == 0.95 and found["inputs"] == profile.inputs
    assert found["spread"]["mean"] == pytest.approx(float(profile.density[..., 1].mean()))
    assert [row["layer"] for row in found["layers"]] == list(range(profile.layers))


def test_a_profile_equals_itself() -> None:
    text = printed(*comparison_tables(made_profile(), made_profile(), 0.9))
    assert "correlation 1.000, of ranks 1.000; first less second +0.000" in text


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    findings = [Finding("triton", good=False, text="pip install 'svoo[gpu]'")]
    assert "pip install 'svoo[gpu]'" in printed(doctor_table(findings))
    profile = replace(made_profile(), provenance={"model": "a[/b]/c"})
    assert "a[/b]/c" in printed(*profile_tables(profile))
    assert "[red] circle" in printed(demo_table("[red] circle", []))


def test_a_demo_shows_a_dash_for_what_is_not_known() -> None:
    keys = ("denoising_seconds", "speed_up", "total_seconds", "density", "recall", "psnr", "ssim")
    row = {"mode": "dense", **dict.fromkeys(keys, 1.0), "lpips": None}
    assert printed(demo_table("x", [row])).rstrip().endswith("1.0000     -")


def test_every_model_of_the_catalogue_is_listed() -> None:
    text = "\n".join(model_lines())
    for name in (*(model.name for model in models()), *SEAM_TESTED):
        assert name in text
