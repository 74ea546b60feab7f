"""Environments with exactly one seeded fault each, and clean ones: what preflight finds and leaves alone."""
