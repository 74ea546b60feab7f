"""Follows the documentation as a new user would: types what the pages show, and times each block.

    newcomer.py               `make try` of the README, then docs/first-environment.md without its cluster
    newcomer.py page          that page alone
    newcomer.py page cluster  the page with its cluster: needs --warm, and KEEP=1 make demo before

It begins in an empty folder, with a HOME and a PATH that nothing was installed into. The folder has a clone
of this checkout's last commit.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))  # reads a page's blocks

from headway_newcomer.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __doc__))
