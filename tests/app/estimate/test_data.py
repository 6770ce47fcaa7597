import pytest

from svoo.app.estimate.data import (
    find_architecture,
    find_card,
    latencies,
    mean_densities,
    read,
)
from svoo.catalogue import find_model, models
from svoo.errors import ConfigError


def test_every_file_names_its_source() -> None:
    for name in ("cards", "latencies", "architectures", "densities"):
        assert len(read(name)["source"]) > 40


def test_cards() -> None:
    card = find_card("H200")
    assert (card.name, card.memory) == ("h200", 141e9)
    for name in read("cards")["cards"]:
        found = find_card(name)
        assert 1e14 < found.peak < 1e16 and found.link < found.bandwidth < 1e13
    with pytest.raises(ConfigError, match="one of h200, h100, a100, l40s, 4090, 5090, got 'h300'"):
        find_card("h300")


def test_seven_models_have_latencies_and_densities_of_all_their_layers() -> None:
    assert len(latencies()) == 7 and all(
        row["svoo"] < row["dense"] for row in latencies().values()
    )
    for name in latencies():
        model = find_model(name)
        found = mean_densities(model)
        assert found is not None and len(found.mean) == len(found.low) == model.layers
        assert all(0 <= low <= mean <= 1 for low, mean in zip(found.low, found.mean, strict=True))
    assert mean_densities(find_model("mini")) is None


def test_every_model_of_the_catalogue_has_its_sizes() -> None:
    for model in models():
        assert find_architecture(model).feed_forward >= model.heads * model.head_dim
