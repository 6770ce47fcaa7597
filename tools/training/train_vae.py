"""Training of the embedded model's autoencoder on crops of drawn scenes."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn
from torch.nn import functional

from tools.training.backgrounds import ASPECT
from tools.training.build import LATENT_CHANNELS, make_vae
from tools.training.scenes import CLIP_FRAMES, draw_scene, pose, render
from tools.training.training import Log, average, cosine_rate, load_resume, save_grid, save_resume

# The first steps see single pictures, which teach the spatial code cheaply.
PICTURE_STEPS = 600
PICTURES = (16, 1, 64, 64)
# Clips, frames, rows, columns of a batch: each costs about the same. Long ones show the causal
# convolutions in their steady state, wide ones show the spatial attention of the middle block a
# whole picture.
BATCHES = ((4, 9, 64, 64), (2, 17, 64, 64), (2, 17, 64, 64), (2, 33, 48, 48), (2, 9, 72, 128))
HEIGHTS = (144, 144, 144, 72, 108)  # whole pictures that crops are cut from
PICTURE_RATE = 6e-4
CLIP_RATE = 2e-4  # three times as many taps are at work: 6e-4 lost 4 dB in 200 steps
KL_WEIGHT = 3e-4


def initialise(vae: AutoencoderKLWan) -> None:
    """Start as a picture autoencoder of unit gain that drops three frames of four and repeats the
    fourth.

    torch's own defaults shrink the signal below the biases over these twenty layers: after 150
    steps the PSNR was 13.5 dB, that of a constant picture, against 20.3 dB with unit gain. Random
    temporal taps undid what pictures had taught (27 to 19 dB); zero ones, but for the newest
    frame's, keep it.
    """
    for name, module in vae.named_modules():
        if not isinstance(module, nn.Conv2d | nn.Conv3d):
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        if name.endswith("time_conv"):
            nn.init.zeros_(module.weight)
            channels = module.weight.shape[1]
            for first in range(0, module.weight.shape[0], channels):
                nn.init.eye_(module.weight.data[first : first + channels, :, -1, 0, 0])
        elif name.endswith("proj"):  # the attention of the middle block starts as nothing
            nn.init.zeros_(module.weight)
        elif isinstance(module, nn.Conv3d):
            nn.init.zeros_(module.weight)
            nn.init.kaiming_normal_(module.weight.data[:, :, -1], nonlinearity="linear")
        else:
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
    with torch.no_grad():
        vae.quant_conv.weight[LATENT_CHANNELS:] *= 0.1
        vae.quant_conv.bias[LATENT_CHANNELS:] = -5.0


def draw_batch(chance: random.Random, *, pictures: bool = False) -> Tensor:
    """Draw crops `[clips, 3, frames, rows, columns]`; most have a thing in view, for the
    background is easy."""
    clips, frames, rows, columns = PICTURES if pictures else chance.choice(BATCHES)
    return torch.stack([_draw_crop(chance, frames, rows, columns) for _ in range(clips)])


def _draw_crop(chance: random.Random, frames: int, rows: int, columns: int) -> Tensor:
    height = max(rows, chance.choice(HEIGHTS))
    width = max(columns, round(height * ASPECT))
    scene = draw_scene(chance)
    first = chance.randint(0, CLIP_FRAMES - frames)
    top, left = chance.randint(0, height - rows), chance.randint(0, width - columns)
    if chance.random() < 0.6:
        time = torch.tensor((first + frames / 2) / (CLIP_FRAMES - 1))
        x, y, _, _ = pose(chance.choice(scene.things), time)
        top = int(y * height) - chance.randint(rows // 4, 3 * rows // 4)
        left = int((x - (ASPECT - width / height) / 2) * height) - chance.randint(
            columns // 4, 3 * columns // 4
        )
        top, left = max(0, min(height - rows, top)), max(0, min(width - columns, left))
    clip = render(
        scene, frames, height, width, first_frame=first, window=(top, left, rows, columns)
    )
    return clip.transpose(0, 1)


def train_vae(out: Path, steps: int, *, resume: bool, save_every: int = 250) -> None:
    """Train for `steps` in all; everything is written below `out`."""
    torch.manual_seed(0)
    vae = make_vae()
    initialise(vae)
    averaged = average(vae, 0.998)
    optimiser = torch.optim.AdamW(
        vae.parameters(), lr=PICTURE_RATE, betas=(0.9, 0.98), weight_decay=1e-4
    )
    first, seconds = 0, 0.0
    if resume:
        facts = load_resume(out / "vae.safetensors", vae, averaged, [optimiser])
        first, seconds = int(facts["step"]), facts["seconds"]
    log = Log(out / "vae.jsonl", seconds)
    running = 0.0
    for step in range(first, steps):
        chance = random.Random(step)
        if step == PICTURE_STEPS:
            # Adam knows no gradient of the temporal taps: its first steps would be far too long.
            optimiser.state.clear()
        peak, begun = (PICTURE_RATE, 0) if step < PICTURE_STEPS else (CLIP_RATE, PICTURE_STEPS)
        for group in optimiser.param_groups:
            group["lr"] = min(1.0, (1 + step - begun) / 100) * cosine_rate(step, steps, peak)
        clips = draw_batch(chance, pictures=step < PICTURE_STEPS)
        latent = vae.encode(clips).latent_dist
        error = vae.decode(latent.sample()).sample - clips
        kl = 0.5 * (latent.mean**2 + latent.var - 1 - latent.logvar).mean()
        squared = functional.mse_loss(error, torch.zeros_like(error))
        loss = error.abs().mean() + 4 * squared + KL_WEIGHT * kl
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        averaged.update_parameters(vae)
        running = squared.item() if step == first else 0.98 * running + 0.02 * squared.item()
        if step % 25 == 0:
            decibels = float(10 * torch.log10(torch.tensor(4 / running)))
            log.write(step=step, psnr=decibels, kl=kl.item())
        if (step + 1) % save_every == 0 or step + 1 == steps:
            facts = {"step": step + 1, "seconds": log.seconds}
            save_resume(out / "vae.safetensors", vae, averaged, [optimiser], facts)
        if (step + 1) % (4 * save_every) == 0 or step + 1 == steps:
            psnr = held_out_psnr(averaged.module, 4, out / "vae.png")
            log.write(step=step + 1, held_out_psnr=psnr)


@torch.no_grad()
def held_out_psnr(vae: AutoencoderKLWan, clips: int, picture: Path | None = None) -> float:
    """Return the mean PSNR of whole default-size clips, drawn with seeds that training does not
    use."""
    rows, values = [], []
    for seed in range(clips):
        clip = render(draw_scene(random.Random(f"held out {seed}")), CLIP_FRAMES, 144, 256)
        again = vae.decode(vae.encode(clip.transpose(0, 1)[None]).latent_dist.mode()).sample
        again = again[0].transpose(0, 1).clamp(-1, 1)
        values.append(float(10 * torch.log10(4 / functional.mse_loss(again, clip))))
        rows += [clip, again]
    if picture:
        save_grid(rows, picture)
    return sum(values) / len(values)
