"""Measures whether the demo's job learns: `make bench-learning`."""
