"""Weights on their way to the rollout servers."""
