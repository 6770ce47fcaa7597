"""Compiled kernels: Triton for a GPU, C++ for the CPU."""
