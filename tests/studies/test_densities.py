import studying

from svoo.studies.densities import read_densities


def test_densities_of_all_prompts_are_one_array() -> None:
    results = studying.empty()
    assert read_densities(results, "layers", "by_head") is None
    for prompt in ("a", "b", "a"):  # made anew: the later counts
        results.add(
            "layers", f"{prompt}{len(results.records)}", {"prompt": prompt, "by_head": [[1.0]]}
        )
    found = read_densities(results, "layers", "by_head")
    assert found is not None and found.shape == (2, 1, 1)
    results.add("layers", "other", {"prompt": "c", "by_head": [[1.0, 2.0]]})
    assert read_densities(results, "layers", "by_head") is None  # they do not fit together
