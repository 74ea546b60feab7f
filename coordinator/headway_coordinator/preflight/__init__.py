"""Checks before the first gradient: each says what it saw and what to change."""
