"""Follows the documentation as a new user would: types the commands of the pages, and times each block.

    newcomer.py               `make try` of the README, then docs/first-environment.md up to its cluster part
    newcomer.py page          only that page, up to its cluster part
    newcomer.py page cluster  the page with its cluster part; needs --warm, and first KEEP=1 make demo

It begins in an empty folder with a clone of this checkout's last commit. HOME is empty, and PATH has only the
system's folders.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))  # reads a page's blocks

from headway_newcomer.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __doc__))
