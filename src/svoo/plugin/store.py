"""The file of a recording: what is done so far survives a crash, and nobody else's is
overwritten."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from svoo.errors import ProfileError
from svoo.profiles.profile import Profile

ADVICE = "choose another output, or restart (--restart) to replace it"


class Store:
    """The file of a recording, and beside it what is done so far."""

    def __init__(self, path: Path, request: Mapping[str, str]) -> None:
        """Keep the recording of a request, described by its provenance, at a path."""
        self.path = path
        self.unfinished = path.with_name(path.name + ".unfinished")
        self.request = request

    def begin(self, *, restart: bool) -> Profile | None:
        """Return what earlier runs of the same request have done; refuse those of another.

        A restart that was itself interrupted goes on too: what is unfinished counts first.
        """
        if self.unfinished.exists():
            try:
                return self.read(self.unfinished)
            except ProfileError:
                if not restart:
                    raise
            self.unfinished.unlink()
        return None if restart or not self.path.exists() else self.read(self.path)

    def read(self, path: Path) -> Profile:
        """Return what a file holds if the same request began it; else say what to do."""
        try:
            earlier = Profile.load(path)
        except ProfileError as error:
            raise ProfileError(f"{error}\n{ADVICE}") from error
        self.check(earlier, path, self.request)
        return earlier

    @staticmethod
    def check(earlier: Profile, path: Path, request: Mapping[str, str]) -> None:
        """Refuse what a path holds if another request began it."""
        differences = [
            f"  {name}: {earlier.provenance.get(name, 'unknown')} there, {fact} now"
            for name, fact in request.items()
            if earlier.provenance.get(name) != fact
        ]
        if differences:
            lines = (f"{path} was begun by another request:", *differences, ADVICE)
            raise ProfileError("\n".join(lines))

    def keep(self, profile: Profile) -> None:
        """Save what is done so far."""
        profile.save(self.unfinished)

    def finish(self, profile: Profile) -> None:
        """Save the whole profile and remove the unfinished one."""
        profile.save(self.path)
        self.unfinished.unlink(missing_ok=True)
