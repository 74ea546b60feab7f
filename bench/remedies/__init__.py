"""Measures whether remedies save a collapsing job: `make bench-remedies`."""
