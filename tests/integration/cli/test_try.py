"""`make try`: it ends with a report and a better agent, and a second run prints the same report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]


def tried(output: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"OUTPUT": str(output)} | variables
    command = [sys.executable, str(ROOT / "hack" / "demo" / "try_local.py")]
    return subprocess.run(command, env=environ, text=True, capture_output=True, timeout=1000)


def test_a_try_improves_the_agent_and_a_rerun_repeats_the_report(tmp_path: Path) -> None:
    done = tried(tmp_path / "try")
    assert done.returncode == 0, done.stdout + done.stderr
    shares = re.search(r"before ([\d.]+)%   after ([\d.]+)%", done.stdout)
    assert shares is not None, done.stdout
    before, after = map(float, shares.groups())
    assert before < 60 < 90 < after
    assert "equal to .status.usage" in done.stdout
    again = tried(tmp_path / "try")
    assert again.returncode == 0, again.stdout + again.stderr
    assert shares.group() in again.stdout


def test_the_error_for_a_wrong_setting_names_it(tmp_path: Path) -> None:
    done = tried(tmp_path / "try", STEPS="many")
    assert done.returncode == 2
    assert "STEPS='many': write a whole number" in done.stderr
