"""The section that `benchmarks/kernel_pages.py` puts into docs/figures.md."""

from typing import Any

from kernel_pages import PAGE, SECTION, as_page

MACHINE = {"threads": 2, "processor": "x", "instructions": "AVX2", "torch": "2", "commit": "abc"}


def row(tokens: int, density: float) -> dict[str, Any]:
    sparse = {f"{name}_seconds": density for name in ("cpp", "cpp_compensated")}
    sparse |= {f"{name}_seconds": 2 * density for name in ("blocked", "blocked_compensated")}
    ideal = {"cpp_of_ideal": 1.0, "blocked_of_ideal": 0.5}
    return {"tokens": tokens, "density": density + 0.004, "dense_seconds": 1.0, **sparse, **ideal}


def found(**pair: float) -> dict[str, Any]:
    names = ("dense", "cpp", "blocked", "svoo", "buffer", "all_pairs")
    return {
        "machine": MACHINE,
        "rows": [row(tokens, density) for tokens in (8192, 4096) for density in (0.1, 0.5)],
        "flex": [{"flex_over_cpp": 1.5, "flex_over_blocked": 1.2}],
        "all_pairs": [{"size": 32, "block": b, "of_dense": b / 100, **pair} for b in (16, 84)],
        "whole": [{"tokens": 4096, "dense_seconds": 4.0, "svoo_seconds": 2.0, "error": 0.01}],
        "memory": {"tokens": 32768, **{f"{name}_bytes": 2**20 for name in names}},
    }


def test_the_section_says_what_was_measured() -> None:
    text = as_page(found())
    assert "| 4,096 | 10.0x (1.00) | 2.0x (1.00) | 5.0x (0.50) | 1.0x (0.50) |" in text
    assert text.index("| 4,096 |") < text.index("| 8,192 |")
    assert "cpp 1.5 to 1.5; blocked 1.2 to 1.2" in text
    assert "| 32 | float32 | 0.84 | 0.16 |" in text and "bfloat16" not in text
    assert "2.0x (1.0% off) at 4,096 tokens" in text and "a dense call 1 MiB" in text


def test_products_in_bfloat16_are_shown_where_they_ran() -> None:
    text = as_page(found(bf16_of_dense=0.3, bf16_error=0.004))
    assert "| 32 | bfloat16 | 0.30 | 0.30 |" in text
    assert "0.40% to 0.40% from those in float32" in text


def test_the_page_has_the_section() -> None:
    text = PAGE.read_text()
    assert text.count(f"<!-- {SECTION} -->") == text.count(f"<!-- end of {SECTION} -->") == 1
