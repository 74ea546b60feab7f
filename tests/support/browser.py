"""A real browser for the tests of pages: Debian's Chromium, headless."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from debian_program import program
from guests import guest

PROGRAM = Path(__file__).resolve().parents[1] / "integration" / "pages" / "visit.py"
LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Visit:
    """What a browser saw of one page."""

    errors: list[str]
    """Errors and warnings of the console, errors of scripts, and addresses that the page requested."""
    violations: list[str]
    """Rules of accessibility that the page breaks, with the elements."""
    seen: dict[str, object]
    """What the page's controls did: see `visit.py`."""


def visit(page: Path, *, dark: bool = False, width: int = 1280, picture: Path | None = None) -> Visit:
    """Open a page, use its keyboard, look for faults, and take its picture."""
    options = {
        "page": f"file://{page}",
        "browser": program("chromium"),
        "dark": dark,
        "width": width,
        "picture": None if picture is None else str(picture),
    }
    done = subprocess.run(
        [guest("browser"), PROGRAM],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Visit(**json.loads(done.stdout))
