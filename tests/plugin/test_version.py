from importlib import metadata

import pytest
import tiny

import svoo
from svoo.errors import ModelError
from svoo.plugin.version import check_version


@pytest.mark.parametrize("version", ["0.41.3", "0.43.0", "1.0.0.dev0"])
def test_another_diffusers_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_version()
    monkeypatch.setattr(metadata, "version", lambda _name: version)
    with pytest.raises(
        ModelError, match=rf"needs diffusers >= 0.42, < 0.43, found {version}; pip"
    ):
        svoo.apply(tiny.wan_transformer())


def test_no_diffusers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ModelError, match=r"none is installed; pip install 'svoo\[diffusers\]'"):
        svoo.apply(object())
