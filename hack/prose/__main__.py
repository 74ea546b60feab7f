"""Checks that documentation is in plain words: `python hack/prose [PAGE ...]`, from any folder.

Without pages it checks all that people write, and allows what `hack/prose/allowed.txt` lists.
With pages it prints all of their faults. It exits with 1 where it prints anything.
Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headway_prose.faults import allowed, faults, verdicts
from headway_prose.pages import pages

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = ROOT / "hack" / "prose" / "allowed.txt"


def main(named: list[str]) -> int:
    if named:
        found = {name: [*faults(Path(name).read_text(encoding="utf-8"))] for name in named}
        lines = [*verdicts(found, {})]
    else:
        found = {name: [*faults(text)] for name, text in pages(ROOT)}
        lines = [*verdicts(found, allowed(ALLOWED.read_text(encoding="utf-8")))]
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
