"""Environments with exactly one seeded fault each, and clean ones: what the preflight finds in them."""
