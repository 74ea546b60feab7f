"""Measures the overhead and the benefits of the coordinator: `make bench-rollout`."""
