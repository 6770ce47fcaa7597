"""Training of the embedded model's text encoder and transformer on cached codes of drawn
scenes."""

from __future__ import annotations

import hashlib
import inspect
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from transformers import PreTrainedTokenizerFast

from svoo.mini.vocabulary import SHAPES
from svoo.storage import write_atomically
from tools.training import backgrounds, scenes
from tools.training.backgrounds import ASPECT
from tools.training.build import assemble, make_text_encoder, make_tokenizer, make_transformer
from tools.training.scenes import CLIP_FRAMES, Scene, draw_scene, near_things, pose, render
from tools.training.training import Log, average, cosine_rate, load_resume, save_grid, save_resume

PEAK_RATE = 1e-3
AVERAGING = 0.995  # over some 200 steps; more would carry the second stage into the last
CAPTION_DROPOUT = 0.1
THING_WEIGHT = 8.0  # how much more an error close by a thing counts: they fill 8 % of a picture
GUIDED_BLOCK, GUIDE_WEIGHT = 2, 0.5
EXTRA_SHIFTS = (1.0, 8.0)  # where a thing is and goes shows at noise levels above 0.9 already
TEXT_LENGTHS = (32, 32, 32, 32, 32, 32, 32, 128, 512)  # what pipelines pad captions to


@dataclass(frozen=True)
class Codes:
    """A kind of clips whose codes are cached, in files of `clips` each.

    One more file comes into play every `NEW_FILE_EVERY` steps, so that training can begin early.
    """

    name: str
    clips: int
    files: int
    frames: int
    height: int
    width: int
    encoded_together: int


QUARTER = Codes("quarter", 400, 8, CLIP_FRAMES, 40, 72, 8)
HALF = Codes("half", 400, 3, CLIP_FRAMES, 80, 144, 4)
SHORT = Codes("short", 400, 3, 5, 144, 256, 8)
FULL = Codes("full", 40, 2, CLIP_FRAMES, 144, 256, 2)
NEW_FILE_EVERY = 600


@dataclass(frozen=True)
class Batch:
    """A batch of `clips` codes cut to the first `frames` code frames; `shift` moves the noise
    up."""

    codes: Codes
    clips: int
    frames: int
    shift: float


# Stages by the part of the steps where they begin. Whole motions in 585 tokens teach what words
# mean for the least price; then 900 and 2,340 tokens, and 1,152 that cover all positions of a full
# picture; at last what the pipeline makes by default, and less noise, where shapes show.
STAGES = (
    (0.0, (Batch(QUARTER, 10, 13, 2.0),)),
    (
        0.65,
        (
            Batch(QUARTER, 10, 13, 2.0),
            Batch(HALF, 8, 5, 2.0),
            Batch(HALF, 3, 13, 2.5),
            Batch(SHORT, 5, 2, 3.0),
        ),
    ),
    (
        0.82,
        (
            Batch(HALF, 3, 13, 2.5),
            Batch(SHORT, 5, 2, 1.0),
            Batch(FULL, 1, 13, 3.0),
            Batch(FULL, 2, 4, 3.0),
        ),
    ),
)


@dataclass(frozen=True)
class Clip:
    """What a cached clip shows: a scene from a frame on."""

    scene: Scene
    first_frame: int


class LatentCache:
    """Codes of drawn clips on disk, one file for every kind, autoencoder and way of drawing; made
    when first asked for."""

    def __init__(self, folder: Path, vae: AutoencoderKLWan) -> None:
        """Use `folder` for codes of this autoencoder, of scenes as they are drawn now."""
        digest = hashlib.sha256()
        for module in (scenes, backgrounds):
            digest.update(inspect.getsource(module).encode())
        for value in vae.state_dict().values():
            digest.update(value.float().numpy().tobytes())
        self.folder = folder / digest.hexdigest()[:12]
        self.vae = vae
        self._loaded: dict[tuple[str, int], tuple[Tensor, list[Clip]]] = {}

    def get(self, codes: Codes, number: int) -> tuple[Tensor, list[Clip]]:
        """Return normalised codes `[clips, 16, frames, rows, columns]` in float16, and what they
        show."""
        key = codes.name, number
        if key not in self._loaded:
            path = self.folder / f"{codes.name}-{number}.safetensors"
            if not path.exists():
                self._make(codes, number, path)
            clips = range(number * codes.clips, (number + 1) * codes.clips)
            self._loaded[key] = load_file(path)["codes"], [_draw(codes, clip) for clip in clips]
        return self._loaded[key]

    @torch.no_grad()
    def _make(self, codes: Codes, number: int, path: Path) -> None:
        mean = torch.tensor(self.vae.config.latents_mean).view(1, -1, 1, 1, 1)
        std = torch.tensor(self.vae.config.latents_std).view(1, -1, 1, 1, 1)
        done = []
        end = (number + 1) * codes.clips
        for start in range(number * codes.clips, end, codes.encoded_together):
            size = codes.frames, codes.height, codes.width
            drawn = [
                _draw(codes, n) for n in range(start, min(end, start + codes.encoded_together))
            ]
            clips = [render(clip.scene, *size, first_frame=clip.first_frame) for clip in drawn]
            code = self.vae.encode(torch.stack(clips).transpose(1, 2)).latent_dist.mode()
            done.append(((code - mean) / std).half())
        write_atomically(path, save_tensors({"codes": torch.cat(done)}))


def _draw(codes: Codes, number: int) -> Clip:
    chance = random.Random(f"{codes.name} {number}")
    return Clip(draw_scene(chance), chance.randint(0, CLIP_FRAMES - codes.frames))


def code_times(clip: Clip, frames: int, back: int = 0) -> Tensor:
    """Return the time of the frame that is `back` before the last one of each code frame.

    A code frame stands for four frames of the clip, the first for one.
    """
    last = clip.first_frame + 4.0 * torch.arange(frames)
    return (last - back).clamp(min=clip.first_frame) / (CLIP_FRAMES - 1)


def weigh(clip: Clip, frames: int, rows: int, columns: int) -> Tensor:
    """Return how much the error of each code `[frames, rows, columns]` counts, 1 on average."""
    ends = (code_times(clip, frames, back) for back in (0, 3))
    near = torch.stack([near_things(clip.scene, times, rows, columns) for times in ends])
    weights = 1 + THING_WEIGHT * near.any(dim=0)
    return weights / weights.mean()


class Guide(nn.Module):
    """Guesses from a token's state in the middle of the transformer where the thing is in the
    token's frame, and its shape; only in training.

    Without it motion words are not learnt: a model that makes nothing of them has no use for
    knowing which frame a token is in, and one that does not know has no use for motion words.
    """

    def __init__(self, block: nn.Module, width: int) -> None:
        """Listen to a block."""
        super().__init__()
        self.guess = nn.Linear(width, 2)
        self.name = nn.Linear(width, len(SHAPES))
        self._heard: list[Tensor] = []
        block.register_forward_hook(lambda _block, _inputs, state: self._heard.append(state))

    def errors(self, clips: list[Clip], frames: int) -> tuple[Tensor, Tensor]:
        """Return how wrong the guesses in the forward just done are: the mean squared error of
        places in fifths of the picture's height, and the cross-entropy of shapes in nats.

        Clips with two things do not count.
        """
        places = torch.stack([self._places(clip, frames) for clip in clips])
        shapes = torch.tensor([SHAPES.index(clip.scene.things[0].shape) for clip in clips])
        state = self._heard.pop()
        guesses = self.guess(state).float().unflatten(1, (frames, -1))
        names = self.name(state).float().log_softmax(dim=-1).mean(dim=1)
        counts = torch.tensor([float(len(clip.scene.things) == 1) for clip in clips])
        off = (guesses - places.unsqueeze(2)).square().mean(dim=(1, 2, 3))
        unlikely = -names.gather(1, shapes.unsqueeze(1)).squeeze(1)
        single = counts.sum().clamp(min=1)
        return (counts * off).sum() / single, (counts * unlikely).sum() / single

    @staticmethod
    def _places(clip: Clip, frames: int) -> Tensor:
        x, y, _, _ = pose(clip.scene.things[0], code_times(clip, frames))
        return torch.stack(((x - ASPECT / 2) / 0.2, (y - 0.5) / 0.2), dim=-1)


def embed(
    text_encoder: nn.Module, tokenizer: PreTrainedTokenizerFast, captions: list[str], length: int
) -> Tensor:
    """Return embeddings `[captions, length, width]`, zero behind a caption's end, as the Wan
    pipeline makes them."""
    tokens = tokenizer(captions, padding=True, return_tensors="pt")
    mask = tokens["attention_mask"]
    states = text_encoder(tokens["input_ids"], mask).last_hidden_state * mask.unsqueeze(-1)
    return torch.nn.functional.pad(states, (0, 0, 0, length - states.shape[1]))


def train_dit(
    out: Path,
    weights: Path,
    cache: Path,
    steps: int,
    *,
    resume: bool,
    bfloat16: bool = False,
    save_every: int = 100,
) -> None:
    """Train for `steps` in all; everything is written below `out`, codes below `cache`.

    Products in `bfloat16` are faster where the processor has them.
    """
    torch.manual_seed(0)
    vae = AutoencoderKLWan.from_pretrained(weights / "vae", dtype=torch.float32).eval()
    latents, tokenizer = LatentCache(cache, vae), make_tokenizer()
    transformer = make_transformer()
    guide = Guide(transformer.blocks[GUIDED_BLOCK], transformer.proj_out.in_features)
    parts = nn.ModuleDict(
        {"text_encoder": make_text_encoder(), "transformer": transformer, "guide": guide}
    )
    averaged = average(parts, AVERAGING)
    optimiser = torch.optim.AdamW(
        parts.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    first, seconds = 0, 0.0
    if resume:
        facts = load_resume(out / "resume.safetensors", parts, averaged, optimiser)
        first, seconds = int(facts["step"]), facts["seconds"]
    log = Log(out / "dit.jsonl", seconds)
    running: dict[str, float] = {}
    for step in range(first, steps):
        chance = random.Random(step)
        batch = chance.choice([batches for part, batches in STAGES if step >= part * steps][-1])
        for group in optimiser.param_groups:
            group["lr"] = min(1.0, (step + 1) / 100) * cosine_rate(step, steps, PEAK_RATE)
        file = chance.randrange(min(batch.codes.files, 1 + step // NEW_FILE_EVERY))
        codes, clips = latents.get(batch.codes, file)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            flow, path, shape = _losses(parts, tokenizer, codes, clips, batch, chance)
        optimiser.zero_grad()
        (flow + GUIDE_WEIGHT * (path + shape)).backward()
        torch.nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimiser.step()
        averaged.update_parameters(parts)
        kind = f"{batch.codes.name}{batch.frames}"
        for name, loss in (kind, flow), ("path", path), ("shape", shape):
            running[name] = 0.95 * running.get(name, loss.item()) + 0.05 * loss.item()
        if step % 25 == 0:
            log.write(step=step, **running)
        if (step + 1) % save_every == 0 or step + 1 == steps:
            facts = {"step": step + 1, "seconds": log.seconds}
            save_resume(out / "resume.safetensors", parts, averaged, optimiser, facts)
        if (step + 1) % (5 * save_every) == 0 or step + 1 == steps:
            _save_samples(averaged, vae, out / "samples" / f"{step + 1:06d}.png")


def _losses(
    parts: nn.ModuleDict,
    tokenizer: PreTrainedTokenizerFast,
    codes: Tensor,
    clips: list[Clip],
    batch: Batch,
    chance: random.Random,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the flow-matching loss of a batch drawn by `chance`, and the guide's errors."""
    picked = [chance.randrange(len(codes)) for _ in range(batch.clips)]
    clean = codes[picked, :, : batch.frames].float()
    words = ["" if chance.random() < CAPTION_DROPOUT else clips[n].scene.caption for n in picked]
    generator = torch.Generator().manual_seed(chance.getrandbits(62))
    noise = torch.randn(clean.shape, generator=generator)
    even = torch.sigmoid(torch.randn(batch.clips, generator=generator))
    shift = batch.shift * chance.choice(EXTRA_SHIFTS)
    sigma = shift * even / (1 + (shift - 1) * even)
    level = sigma.view(-1, 1, 1, 1, 1)
    velocity = parts["transformer"](
        (1 - level) * clean + level * noise,
        timestep=1000 * sigma,
        encoder_hidden_states=embed(
            parts["text_encoder"], tokenizer, words, chance.choice(TEXT_LENGTHS)
        ),
        return_dict=False,
    )[0]
    weights = torch.stack([weigh(clips[n], *clean.shape[2:]) for n in picked]).unsqueeze(1)
    flow = (weights * (velocity.float() - (noise - clean)).square()).mean()
    guide = parts["guide"]
    assert isinstance(guide, Guide)
    return flow, *guide.errors([clips[n] for n in picked], batch.frames)


def _save_samples(averaged: AveragedModel, vae: AutoencoderKLWan, path: Path) -> None:
    """Generate a few half-size clips with the averaged weights and save them as a grid."""
    parts = nn.ModuleDict({"text_encoder": make_text_encoder(), "transformer": make_transformer()})
    parts.load_state_dict(averaged.module.state_dict(), strict=False)  # the guide stays behind
    pipe = assemble(vae, parts["text_encoder"], parts["transformer"])
    pipe.set_progress_bar_config(disable=True)
    prompts = (
        "a red circle moves left over a checkered floor",
        "a yellow star spins in front of a brick wall",
        "the green square moves up and right over rippling water",
        "a purple ring moves down in front of a starry sky",
    )
    clips = []
    for prompt in prompts:
        video = pipe(
            prompt,
            height=80,
            width=144,
            num_frames=17,
            num_inference_steps=16,
            guidance_scale=3.0,
            max_sequence_length=32,
            generator=torch.Generator().manual_seed(0),
            output_type="pt",
        ).frames[0]
        clips.append(video.float() * 2 - 1)
    save_grid(clips, path)
