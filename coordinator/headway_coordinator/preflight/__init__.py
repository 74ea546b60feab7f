"""Checks before the first gradient: each says what it found and what to change."""
