"""How the C++ kernels are called: their structures, and the workers that run them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from svoo.kernels.cpp import DTYPES
from svoo.kernels.cpp.build import load_library
from svoo.kernels.cpp.threads import send_openmp_to_sleep


class Tokens(ctypes.Structure):
    """Where tokens `[B, H, N, D]` are; the numbers of a row stand side by side."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    )


def _pointers(*names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


def _numbers(*names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_int64) for name in names)


# As in calls.h. The last numbers of each count the pieces of work that were taken, and the
# threads that had no memory.


class Attention(ctypes.Structure):
    """A plan and its tensors; the pieces of work are key blocks to pack and groups of queries."""

    _fields_ = (
        *((name, Tokens) for name in ("query", "key", "value", "output")),
        *_pointers("lse", "packed_keys", "packed_values"),
        *_pointers("query_order", "key_order", "query_sizes", "key_sizes", "keep", "compensate"),
        *_pointers("middle", "bias", "far_values", "group_bias", "group_keys", "group_values"),
        *_numbers("heads", "queries", "keys", "size", "query_blocks", "key_blocks", "groups"),
        *_numbers("first_pair", "pairs", "round_products", "packs_rows"),
        ("scale", ctypes.c_double),
        *_numbers("next_block", "next_group", "failures"),
    )


class Assignment(ctypes.Structure):
    """Tokens to be labelled; the pieces of work are token segments."""

    _fields_ = (
        ("tokens", Tokens),
        *_pointers("weights", "bias", "labels"),
        *_numbers("batch", "heads", "count", "size", "clusters"),
        *_numbers("next_segment", "failures"),
    )


class Centroids(ctypes.Structure):
    """Tokens to be averaged by label; the pieces of work are heads."""

    _fields_ = (
        ("tokens", Tokens),
        *_pointers("labels", "centroids", "sizes"),
        *_numbers("batch", "heads", "count", "size", "clusters"),
        *_numbers("next_head", "failures"),
    )


class Features(ctypes.Structure):
    """Tokens to be projected on few axes; the pieces of work are queries or keys of a head."""

    _fields_ = (
        *((name, Tokens) for name in ("query", "key", "value")),
        *_pointers("start", "query_made", "key_made"),
        *_numbers("pairs", "heads", "queries", "keys", "size"),
        *_numbers("key_features", "query_every", "key_every", "rounds"),
        ("value_share", ctypes.c_double),
        *_numbers("next_side", "failures"),
    )


class Moments(ctypes.Structure):
    """Tokens in cluster order to be averaged; the pieces of work are stretches of clusters."""

    _fields_ = (
        ("tokens", Tokens),
        *_pointers("order", "sizes", "means", "variances"),
        *_numbers("pairs", "heads", "count", "size", "clusters"),
        *_numbers("next_stretch", "failures"),
    )


class FarField(ctypes.Structure):
    """Key blocks to be seen by query means; the pieces of work are stretches of key blocks."""

    _fields_ = (
        *(("key", Tokens), ("value", Tokens)),
        *_pointers("query_means", "key_means", "key_order", "key_sizes"),
        *_pointers("bias", "values", "lengths"),
        *_numbers("pairs", "heads", "keys", "size", "query_blocks", "key_blocks"),
        ("scale", ctypes.c_double),
        *_numbers("next_stretch", "failures"),
    )


class Groups(ctypes.Structure):
    """Key blocks to be grouped by their means; the pieces of work are heads."""

    _fields_ = (
        *_pointers("key_means", "value_means", "sizes", "labels", "group_keys", "group_values"),
        *_numbers("pairs", "size", "blocks", "groups", "steps"),
        *_numbers("next_pair", "failures"),
    )


class Tiers(ctypes.Structure):
    """Blocks to be kept, given a term, or grouped; the pieces of work are a few query blocks."""

    _fields_ = (
        *_pointers("bias", "lengths", "query_means", "query_variances"),
        *_pointers("key_means", "key_variances", "value_means", "value_variances"),
        *_pointers("sizes", "labels", "group_keys", "group_values", "weights"),
        *_pointers("keep", "middle", "shared_bias", "shared_keys", "shared_values"),
        *_numbers("pairs", "heads", "size", "query_blocks", "key_blocks", "groups"),
        *(("scale", ctypes.c_double), ("tolerance", ctypes.c_double)),
        *_numbers("next_piece", "failures"),
    )


class BlockSums(ctypes.Structure):
    """Probabilities to be summed over blocks; the pieces of work are a few query blocks."""

    _fields_ = (
        ("query", Tokens),
        *_pointers("keys_made", "sums"),
        *_numbers("pairs", "heads", "queries", "keys", "size", "block"),
        ("scale", ctypes.c_double),
        *_numbers("next_piece", "failures"),
    )


def padded_size(size: int) -> int:
    """Return the numbers of a packed row: as in tiles.h."""
    return -(-size // 32) * 32


def point_to(tokens: Tensor) -> Tokens:
    """Return where tokens with dense rows are; they have to live as long as the call."""
    return Tokens(tokens.data_ptr(), *tokens.stride()[:3])


def run_kernel(name: str, dtype: torch.dtype, call: ctypes.Structure) -> None:
    """Let all threads run a kernel; each takes pieces of the work until none is left."""
    library = load_library()
    kernel = getattr(library, f"{name}_{DTYPES[dtype]}")
    threads = torch.get_num_threads()
    if threads > 1:
        send_openmp_to_sleep()
    library.run_together(kernel, ctypes.byref(call), ctypes.c_int64(threads))
    if call.failures:
        raise MemoryError(f"no memory for a thread of the C++ kernel {name!r}")
