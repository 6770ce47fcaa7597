"""From training checkpoints to a folder of weights: averaged, 16 bits, with their hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors import safe_open
from torch import nn

from tools.training.build import assemble, make_text_encoder, make_transformer, make_vae
from tools.training.codes import STATISTICS_CLIPS, Statistics, measure_statistics
from tools.training.train_dit import read_statistics


def load_averaged(checkpoint: Path, module: nn.Module) -> None:
    """Give a module the averaged weights of a resume file."""
    with safe_open(checkpoint, "pt") as file, torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(file.get_tensor(f"averaged/{name}"))


def export_vae(checkpoint: Path, folder: Path) -> None:
    """Write a trained autoencoder with the mean and spread of its code, which the denoiser is fed
    with."""
    vae = make_vae().eval()
    load_averaged(checkpoint, vae)
    vae = vae.half().float()  # the statistics should be those of the rounded weights
    _save_vae(vae, measure_statistics(vae, STATISTICS_CLIPS), folder)


def export_pipeline(checkpoint: Path, vae_folder: Path, folder: Path) -> None:
    """Write the whole pipeline of a checkpoint and the autoencoder that it was trained with, and
    the hash of every weight file."""
    parts = nn.ModuleDict({"text_encoder": make_text_encoder(), "transformer": make_transformer()})
    load_averaged(checkpoint, parts)
    vae = AutoencoderKLWan.from_pretrained(vae_folder, dtype=torch.float16)
    _save_vae(vae, read_statistics(checkpoint), folder)
    pipe = assemble(vae, parts["text_encoder"].half(), parts["transformer"].half())
    settings = folder / "vae" / "config.json"
    unchanged = settings.read_bytes()
    pipe.save_pretrained(folder)
    settings.write_bytes(unchanged)  # diffusers adds the path of this machine
    write_hashes(folder)


def _save_vae(vae: AutoencoderKLWan, statistics: Statistics, folder: Path) -> None:
    mean, spread = statistics.mean.flatten().tolist(), statistics.spread.flatten().tolist()
    made = make_vae(mean, spread)  # its settings name no path
    made.load_state_dict(vae.state_dict())
    made.half().save_pretrained(folder / "vae")


def write_hashes(folder: Path) -> None:
    """Write the SHA-256 of every weight file below a folder."""
    hashes = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.safetensors"))
    }
    (folder / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")
