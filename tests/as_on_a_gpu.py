"""The kernel tests with as many examples as on a GPU, in Triton's interpreter: prints how many
kernels they would compile there.

    python tests/as_on_a_gpu.py FOLDER_OR_FILE ...
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from torch import Tensor

if TYPE_CHECKING:
    from svoo.kernels.triton.launch import Launch


class Counting:
    """A plugin: remembers what Triton would compile anew."""

    def __init__(self) -> None:
        self.compiled: set[tuple[object, ...]] = set()

    def pytest_sessionstart(self) -> None:
        """Begin, now that `conftest.py` has chosen the interpreter and before tests are read."""
        import making

        from svoo.kernels.triton.launch import Launch

        making.examples = lambda count: min(count, making.GPU_EXAMPLES)
        run = Launch.run

        def counted(launch: Launch) -> None:
            self.compiled.add(specialisation(launch))
            run(launch)

        Launch.run = counted  # type: ignore[method-assign, assignment]


def specialisation(launch: Launch) -> tuple[object, ...]:
    """Return what Triton compiles a launch for: constants, types, and of whole numbers whether
    they are 1, multiples of 16, or wide."""
    known: list[object] = [launch.kernel.__name__, launch.warps, launch.stages]
    for name, value in launch.arguments.items():
        about: object = value
        if isinstance(value, Tensor):
            about = value.dtype, value.data_ptr() % 16 == 0
        elif name.islower() and type(value) is int:
            about = value == 1, value % 16 == 0, value >= 1 << 31
        elif name.islower() and value is not None:
            about = type(value)
        known.append((name, about))
    return tuple(known)


def main(paths: list[str]) -> int:
    """Run the tests; print the number of kernels, and of each kind."""
    counting = Counting()
    code = pytest.main(["-n", "0", "-q", "-k", "interpreter", *paths], plugins=[counting])
    kinds = Counter(str(one[0]) for one in counting.compiled)
    sys.stdout.write(f"kernels: {kinds.total()} {dict(kinds)}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
