"""Training of the embedded model's text encoder and transformer, stage by stage; goes on from any
checkpoint."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tools.training.batches import Batch, draw_batch
from tools.training.build import make_text_encoder, make_tokenizer, make_transformer
from tools.training.codes import STATISTICS_CLIPS, Pool, Statistics, measure_statistics
from tools.training.curriculum import STAGES, Gate, Kind, Stage
from tools.training.guides import Guides, weigh
from tools.training.measure import Probe, clean_first, measure
from tools.training.start import begin, look_at_ends, optimisers, precision, true_times, widen
from tools.training.text import embed
from tools.training.training import (
    Fact,
    Log,
    average,
    load_resume,
    moving,
    read_facts,
    save_resume,
)

RESUME, LOG = "resume.safetensors", "log.jsonl"
WARM_UP = 40
HIGH_NOISE = 0.95  # above it a path is not to be seen
REMEMBERED = 0.97  # how much of a running number is kept at each step


class GateClosed(Exception):
    """A number that should have come by now has not."""


class Trainer:
    """All that training changes: the parts, their average, the optimisers, and where it stands."""

    def __init__(self, out: Path, vae: AutoencoderKLWan, cache: Path, *, resume: bool) -> None:
        """Begin anew, or go on from the checkpoint in `out`; codes are kept below `cache`."""
        torch.manual_seed(0)
        self.out, self.vae, self.cache = out, vae, cache
        self.tokenizer: PreTrainedTokenizerFast = make_tokenizer()
        self.transformer: WanTransformer3DModel = make_transformer()
        begin(self.transformer)
        self.guides = Guides(self.transformer)
        self.parts = nn.ModuleDict(
            {
                "text_encoder": make_text_encoder(),
                "transformer": self.transformer,
                "guides": self.guides,
            }
        )
        self.averaged = average(self.parts, STAGES[0].averaging)
        self.optimisers = optimisers(self.parts, self.transformer)
        self.stage, self.step, self.total, seconds = STAGES[0].name, 0, 0, 0.0
        self.numbering: dict[str, int] = {}
        if resume:
            facts = load_resume(out / RESUME, self.parts, self.averaged, self.optimisers)
            self.stage, self.step, self.total = facts["stage"], facts["step"], facts["total"]
            self.numbering, seconds = facts["numbering"], facts["seconds"]
            self.statistics = read_statistics(out / RESUME)
        else:
            self.statistics = measure_statistics(vae, STATISTICS_CLIPS)
        self.log, self.saved = Log(out / LOG, seconds), seconds
        self.running: dict[str, float] = {}
        self.pools: dict[str, Pool] = {}
        self._probe: Probe | None = None

    def pool(self, kind: Kind) -> Pool:
        """Return the codes that batches of a kind are drawn from."""
        key = f"{kind.frames == 1} {kind.grid}"
        if key not in self.pools:
            pool = Pool(
                self.cache, self.vae, self.statistics, kind.grid, pictures=kind.frames == 1
            )
            pool.next = max(pool.next, self.numbering.get(pool.name, 0))
            self.pools[key] = pool
        return self.pools[key]

    def save(self) -> None:
        """Write the checkpoint."""
        self.numbering |= {pool.name: pool.next for pool in self.pools.values()}
        facts: dict[str, Fact] = {
            "stage": self.stage,
            "step": self.step,
            "total": self.total,
            "seconds": self.log.seconds,
            "numbering": self.numbering,
            "mean": self.statistics.mean.flatten().tolist(),
            "spread": self.statistics.spread.flatten().tolist(),
        }
        save_resume(self.out / RESUME, self.parts, self.averaged, self.optimisers, facts)
        self.saved = self.log.seconds

    def take_step(self, stage: Stage, *, bfloat16: bool) -> None:
        """Do one step of a stage and note its numbers."""
        chance = random.Random(f"{stage.name} {self.step}")
        kind = chance.choices(stage.kinds, [kind.weight for kind in stage.kinds])[0]
        batch = draw_batch(stage, kind, self.pool(kind), chance)
        with precision(bfloat16=bfloat16):
            flow, errors, places = self._errors(batch)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = rate(stage, self.step) * group["share"]
        (flow + sum(stage.guides[name] * error for name, error in errors.items())).backward()
        nn.utils.clip_grad_norm_(self.parts.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.averaged.update_parameters(self.parts)
        self.step += 1
        self.total += 1
        self._note(f"{kind.name}{' from image' if batch.from_image else ''}", flow)
        for name, error in errors.items():
            self._note(name, error)
        high = (batch.level > HIGH_NOISE) & (batch.said > 0)
        if high.any() and not batch.from_image:
            self._note(f"high place {kind.frames}", places[high].mean())

    def _errors(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the flow-matching loss, the guides' errors, and those of places clip by clip."""
        level = batch.level.view(-1, 1, 1, 1, 1)
        noisy = (1 - level) * batch.clean + level * batch.noise
        timestep = 1000 * batch.level
        weights = weigh(batch.targets.near)
        if batch.from_image:
            noisy[:, :, 0] = batch.clean[:, :, 0]
            rows, columns = noisy.shape[3:]
            timestep = clean_first(timestep, len(batch.code_frames), (rows, columns))
            weights[:, :, 0] = 0
        words = embed(
            self.parts["text_encoder"], self.tokenizer, batch.captions, batch.text_length
        )
        with true_times(self.transformer, batch.code_frames):
            velocity = self.transformer(
                noisy, timestep=timestep, encoder_hidden_states=words, return_dict=False
            )[0]
        flow = (weights * (velocity.float() - (batch.noise - batch.clean)).square()).mean()
        errors, places = self.guides.errors(batch.targets, batch.code_frames, batch.said)
        return flow, errors | {"word": self.guides.word_error(words, batch.captions)}, places

    def _note(self, name: str, value: Tensor) -> None:
        before = self.running.get(name, value.item())
        self.running[name] = REMEMBERED * before + (1 - REMEMBERED) * value.item()

    def measure(self, stage: Stage) -> dict[str, float]:
        """Ask the averaged weights for held-out prompts, and half as many from given pictures;
        probe the present ones; log it all."""
        kind = stage.measured
        if self._probe is None:
            self._probe = Probe(self.vae, self.statistics)
        strip = self.out / "strips" / f"{self.total:06d}.png"
        averaged = self.averaged.module
        assert isinstance(averaged, nn.ModuleDict)
        began = time.process_time()
        tools = averaged, self.tokenizer, self.vae, self.statistics
        found = measure(*tools, kind, strip)
        half = replace(kind, clips=(kind.clips + 1) // 2)
        two = measure(*tools, half, strip.with_stem(f"{strip.stem}-two"), about="two")
        found |= {f"{name} of two": value for name, value in two.items()}
        if kind.frames > 1:
            strip = strip.with_stem(f"{strip.stem}-from-image")
            given = measure(*tools, half, strip, about="from image")
            found |= {f"{name} from image": value for name, value in given.items()}
            found |= self._probe.look(self.parts, self.tokenizer)
        took = time.process_time() - began
        self.log.write(
            stage=self.stage,
            step=self.step,
            measured=f"{kind.clips} x {kind.name}",
            **found,
            took=took,
        )
        return found

    def check(self, gates: Sequence[Gate], measured: dict[str, float]) -> None:
        """Raise `GateClosed` if a gate of this step is not passed."""
        for gate in gates:
            if gate.step != self.step:
                continue
            value = (self.running | measured).get(gate.number, float("nan"))
            if not gate.least <= value <= gate.most:
                raise GateClosed(
                    f"{self.stage}, step {self.step}: {gate.number} is {value:.3f}, which should "
                    f"be {gate.least:g} to {gate.most:g}; change something, or resume to go on"
                )


def rate(stage: Stage, step: int) -> float:
    """Return the rate at a step of a stage: it rises at first and falls over the last part."""
    left = (stage.steps - step) / stage.steps
    falling = min(1.0, left / stage.fall) if stage.fall else 1.0
    return stage.rate * min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * falling)


def read_statistics(checkpoint: Path) -> Statistics:
    """Return the statistics of codes that a checkpoint was trained with."""
    facts = read_facts(checkpoint)
    shape = 1, -1, 1, 1, 1
    return Statistics(
        torch.tensor(facts["mean"]).view(shape), torch.tensor(facts["spread"]).view(shape)
    )


def train_dit(
    out: Path,
    weights: Path,
    cache: Path,
    *,
    resume: bool,
    bfloat16: bool,
    stages: Sequence[Stage] = STAGES,
    save_every: float = 180.0,
) -> None:
    """Train through all stages; everything is written below `out`, codes below `cache`.

    A checkpoint is written every `save_every` CPU seconds. A closed gate ends training with a
    message, after a checkpoint that can be gone on from.
    """
    vae = AutoencoderKLWan.from_pretrained(weights / "vae", dtype=torch.float32).eval()
    trainer = Trainer(out, vae, cache, resume=resume)
    names = [stage.name for stage in stages]
    for stage in stages[names.index(trainer.stage) :]:
        if trainer.stage != stage.name:
            trainer.stage, trainer.step = stage.name, 0
        trainer.averaged.avg_fn = moving(stage.averaging)
        if stage.look_at_ends and trainer.step == 0:
            look_at_ends(trainer.transformer)
        if stage.widen and trainer.step == 0:
            widen(trainer.transformer)
        if (stage.look_at_ends or stage.widen) and trainer.step == 0:
            trainer.averaged.n_averaged.zero_()  # the average begins anew
        while trainer.step < stage.steps:
            trainer.take_step(stage, bfloat16=bfloat16)
            last = trainer.step == stage.steps
            if trainer.step % 50 == 0:
                trainer.log.write(stage=stage.name, step=trainer.step, **trainer.running)
            due = trainer.step % stage.measure_every == 0 or last
            gate = any(gate.step == trainer.step for gate in stage.gates)
            if due or gate or trainer.log.seconds - trainer.saved > save_every:
                trainer.save()
            measured = trainer.measure(stage) if due else {}
            trainer.check(stage.gates, measured)
