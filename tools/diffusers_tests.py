"""diffusers' own tests of models and pipelines with svoo applied to everything.

`python -m tools.diffusers_tests path/to/diffusers/tests` (`make test-diffusers`) runs them without
svoo and with it, and fails where a test ends differently. As a plug-in of pytest
(`-p tools.diffusers_tests --svoo on`) this runs one side. All mass is kept, so that sparse
attention is dense attention by another way and every expected value stays the same.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import diffusers  # before diffusers' conftest puts the source of its checkout first
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast, T5Config

import svoo
from svoo.plugin.apply import Handle

MODEL_TESTS = tuple(
    f"models/transformers/test_models_transformer_{name}.py"
    for name in ("wan", "wan_vace", "hunyuan_video")
)
PIPELINE_TESTS = tuple(
    f"pipelines/wan/test_wan{name}.py" for name in ("", "_22", "_video_to_video", "_vace")
)
TRANSFORMERS = (
    diffusers.WanTransformer3DModel,
    diffusers.WanVACETransformer3DModel,
    diffusers.HunyuanVideoTransformer3DModel,
)
PIPELINES = (
    diffusers.WanPipeline,
    diffusers.WanVideoToVideoPipeline,
    diffusers.WanVACEPipeline,
)
EXACT = svoo.SVOOConfig(
    mass=1, compensate=False, dense_steps=0, dense_layers=0, query_clusters=2, key_clusters=3
)
TINY_T5 = "hf-internal-testing/tiny-random-t5"


@dataclass
class Tally:
    """What one side did: how every test ended, and the attention calls that svoo took over."""

    outcomes: dict[str, str] = field(default_factory=dict)
    sparse_calls: int = 0
    dense_calls: int = 0
    dense_reasons: dict[str, int] = field(default_factory=dict)

    def add(self, handle: Handle) -> None:
        """Count the calls of one handle."""
        stats = handle.stats()
        self.sparse_calls += stats.sparse_calls
        self.dense_calls += stats.dense_calls
        for layer in stats.layers:
            for reason, count in layer.dense_reasons.items():
                self.dense_reasons[reason] = self.dense_reasons.get(reason, 0) + count

    def describe(self) -> str:
        """Return the counts as one line of text."""
        ends = Counter(self.outcomes.values())
        words = [f"{ends[end]} {end}" for end in ("passed", "failed", "skipped")]
        reasons = "".join(f"; {count} dense: {why}" for why, count in self.dense_reasons.items())
        return f"{', '.join(words)}; {self.sparse_calls} sparse calls{reasons}"


@contextmanager
def sparse_transformers(tally: Tally) -> Iterator[None]:
    """Make every transformer that is built in here sparse, from its constructor to the end."""
    handles: list[Handle] = []

    def wrap(build: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(build)  # diffusers reads the signature
        def build_sparse(self: Any, *args: Any, **settings: Any) -> None:  # noqa: ANN401
            build(self, *args, **settings)
            handle = svoo.apply(self, EXACT, profile=None)
            handle.set_step(0, 1)  # no pipeline tells it
            handles.append(handle)

        return build_sparse

    with _replaced(TRANSFORMERS, "__init__", wrap):
        try:
            yield
        finally:
            for handle in handles:
                tally.add(handle)
                handle.remove()


@contextmanager
def sparse_pipelines(tally: Tally) -> Iterator[None]:
    """Apply svoo before every pipeline call in here, and remove it after the call."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)  # diffusers' tests read the signature
        def call_sparse(self: Any, *args: Any, **settings: Any) -> Any:  # noqa: ANN401
            with svoo.apply(self, EXACT, profile=None) as handle:
                try:
                    return call(self, *args, **settings)
                finally:
                    tally.add(handle)

        return call_sparse

    with _replaced(PIPELINES, "__call__", wrap):
        yield


@contextmanager
def _replaced(
    classes: tuple[type, ...],
    name: str,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    before = [(each, each.__dict__[name]) for each in classes]
    for each, method in before:
        setattr(each, name, wrap(method))
    try:
        yield
    finally:
        for each, method in before:
            setattr(each, name, method)


@contextmanager
def stand_in_for_t5() -> Iterator[None]:
    """Give the tests a tiny T5 of our own where the hub's cannot be had.

    Values that diffusers expects of the hub's may then differ, on both sides.
    """

    def wrap(load: Callable[..., Any], make: Callable[[], Any]) -> Callable[..., Any]:
        def load_or_make(name: Any, *args: Any, **settings: Any) -> Any:  # noqa: ANN401
            try:
                return load(name, *args, **settings)
            except OSError:
                if str(name) != TINY_T5:
                    raise
                return make()

        return load_or_make

    config, tokenizer = AutoConfig.from_pretrained, AutoTokenizer.from_pretrained
    with (
        patch.object(AutoConfig, "from_pretrained", wrap(config, _t5_config)),
        patch.object(AutoTokenizer, "from_pretrained", wrap(tokenizer, letters)),
    ):
        yield


def _t5_config() -> T5Config:
    return T5Config(vocab_size=1103, d_model=32, d_kv=8, d_ff=37, num_layers=5, num_heads=4)


def letters() -> PreTrainedTokenizerFast:
    """Return a tokenizer of single letters that ends every text, as T5's does."""
    words = ["<pad>", "</s>", "<unk>", *map(chr, range(32, 127))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


class Side:
    """One run of the tests, with svoo or without."""

    def __init__(self, tally: Tally, *, applied: bool) -> None:
        """Count into `tally`."""
        self.tally = tally
        self.applied = applied

    @pytest.fixture(autouse=True, scope="module")  # some results are shared by a class
    def _surroundings(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with stand_in_for_t5():
            if not self.applied:
                yield
            elif "pipelines" in request.path.parts:
                with sparse_pipelines(self.tally):
                    yield
            else:
                with sparse_transformers(self.tally):
                    yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep how a test ended: its call, or what went wrong around it."""
        if report.when == "call" or report.outcome != "passed":
            self.tally.outcomes[report.nodeid] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what svoo took over."""
        terminalreporter.write_line(f"svoo: {self.tally.describe()}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options of this plug-in."""
    group = parser.getgroup("svoo")
    group.addoption("--svoo", choices=("on", "off"), default="on", help="apply svoo everywhere")
    group.addoption("--svoo-tally", type=Path, help="write the outcomes and counts to this file")


_SIDE = pytest.StashKey[Side]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin one side."""
    side = Side(Tally(), applied=config.getoption("--svoo") == "on")
    config.stash[_SIDE] = side
    config.pluginmanager.register(side)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the tally, where a file was named."""
    path: Path | None = session.config.getoption("--svoo-tally")
    if path is not None:
        path.write_text(json.dumps(asdict(session.config.stash[_SIDE].tally)))


def differences(without: Mapping[str, str], applied: Mapping[str, str]) -> list[str]:
    """Return a line for every test that ended differently with svoo applied."""
    return [
        f"{name}: {without.get(name, 'not run')} without svoo, {applied.get(name, 'not run')} with"
        for name in sorted({*without, *applied})
        if without.get(name) != applied.get(name)
    ]


def _run(files: list[Path], side: str, options: list[str]) -> Tally:
    with TemporaryDirectory() as folder:
        path = Path(folder, "tally.json")
        command = [sys.executable, "-m", "pytest", "-p", "tools.diffusers_tests", "-c", os.devnull]
        command += ["-p", "no:cacheprovider", "-q", "-rs", "--tb=short", "--disable-warnings"]
        command += ["--svoo", side, "--svoo-tally", str(path), *options, *map(str, files)]
        # Nothing is downloaded: what the hub has and this machine has not is not asked for.
        subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False)
        if not path.exists():
            sys.exit(f"diffusers' tests did not run with svoo {side}: see above")
        return Tally(**json.loads(path.read_text()))


def main(arguments: list[str] | None = None) -> None:
    """Run both sides and compare them; exits with 1 where they differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.diffusers_tests", description=__doc__)
    parser.add_argument("tests", type=Path, help="the folder tests of a checkout of diffusers")
    parser.add_argument("--only", default="", help="only files with this in their path")
    known, options = parser.parse_known_args(arguments)  # the others are pytest's
    files = [known.tests / name for name in MODEL_TESTS + PIPELINE_TESTS if known.only in name]
    missing = [str(path) for path in files if not path.is_file()]
    if missing or not files:
        parser.error(
            f"expected the folder tests of a checkout of diffusers {diffusers.__version__}, "
            f"got {known.tests}; not there: {', '.join(missing) or known.only}"
        )
    without, applied = (_run(files, side, options) for side in ("off", "on"))
    lines = differences(without.outcomes, applied.outcomes)
    lines += [] if applied.sparse_calls else ["no call was sparse: nothing was tested"]
    sys.stdout.write(f"\nwithout svoo: {without.describe()}\nwith svoo: {applied.describe()}\n")
    sys.exit("\n".join(lines) if lines else 0)


if __name__ == "__main__":
    main()
