"""The error of all modules that read a run."""

from __future__ import annotations


class RunNotFoundError(Exception):
    """The named place has no run, or the run cannot be read; the message says what to name instead."""
