"""Sparse attention without a pipeline: one call, or all calls of a video."""

from svoo.session.one_call import make_plan, sparse_attention
from svoo.session.session import Session

__all__ = ["Session", "make_plan", "sparse_attention"]
