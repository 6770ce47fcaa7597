"""Scores of videos, and reading and writing them."""
