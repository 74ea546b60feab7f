"""Leaves what a process has loaded out of Python's garbage collection.

A full collection looks at every object of the process, and nothing else runs meanwhile: 0.2 s with the
libraries of a coordinator. Those objects stay until the process ends.
"""

from __future__ import annotations

import gc


def exclude_loaded() -> None:
    """Leave out the objects that exist now. Call it once all libraries and models are loaded."""
    gc.collect()
    gc.freeze()
