"""Measures how fast an evaluation runs: `make bench-eval`."""
