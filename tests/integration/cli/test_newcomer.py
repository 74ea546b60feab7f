"""`make newcomer`: docs/first-environment.md, followed by a new user on an empty machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import ROOT

PAGE = "docs/first-environment.md"
SECONDS = 3000
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(SECONDS + 60)]


def test_the_page_leads_from_an_empty_folder_to_a_better_agent(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "hack" / "newcomer" / "newcomer.py"), "page", "--warm"]
    root = tmp_path / "root"
    done = subprocess.run(
        [*command, "--root", str(root)], text=True, capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.rpartition("\nblock ")[2]
    shares = re.search(r"held-out success ([\d.]+) -> ([\d.]+)", table)
    assert shares is not None, done.stdout
    before, after = map(float, shares.groups())
    assert before < 0.7 < 0.9 < after, table
    assert len(re.findall(rf"^{re.escape(PAGE)}:\d+ +[\d.]+  \S", table, re.MULTILINE)) == 8, table
    project = root / "parcels"
    assert (project / "report.html").stat().st_size > 10_000
    assert '"open": "inspect"' in (project / "environment.py").read_text(), (
        "the user's own change is trained on"
    )
