"""Objects that a process loads at its start are left out of later garbage collections."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from headway_coordinator import garbage_collection

kept = [[n] for n in range(1000)]
garbage_collection.exclude_loaded()
print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000)
"""


def test_garbage_collection_skips_objects_loaded_at_the_start() -> None:
    """In a subprocess, because freezing objects would affect the other tests of this process."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
