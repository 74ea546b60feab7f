"""What a process has loaded is left out of later collections of garbage."""

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


def test_what_is_loaded_is_never_looked_at_again() -> None:
    """In a process of its own, because this one has tests to run."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
