"""Sparse-attention methods, one file each."""
