"""Publishes weights to the rollout servers."""
