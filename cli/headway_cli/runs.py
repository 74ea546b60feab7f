"""The error of everything that reads a run."""

from __future__ import annotations


class RunNotFoundError(Exception):
    """There is no run there, or it cannot be read; the message says what to name instead."""
