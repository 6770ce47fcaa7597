"""Doors for programs that load svoo by themselves, through entry points."""
