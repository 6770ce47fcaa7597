"""SVOO, the paper's method and ours beyond it."""
