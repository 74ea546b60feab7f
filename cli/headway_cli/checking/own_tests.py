"""Runs the environment's own tests: `test_*.py` beside its module, with pytest in a separate process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headway_analysis.preflight.conversation import excerpt
from headway_analysis.preflight.definition import Example, Finding
from headway_cli.checking.process import ended, running

TESTS: Final = "tests"
SECONDS: Final = 180.0
"""Maximum seconds for all tests together."""
PASSED, NONE_FOUND = 0, 5
"""Exit codes of pytest: all tests passed, and no tests were found."""
LINES: Final = 12
"""Maximum lines of pytest's output that a finding shows."""
COLUMNS: Final = "200"
"""Width of the terminal for pytest, in columns. Pytest truncates its summary's lines to this width."""
WRITE: Final = "Write one: docs/environments.md#testing-an-environment."


def run(folder: Path, seconds: float = SECONDS) -> Iterator[Finding]:
    """Run the tests of a folder, and yield the result as one finding."""
    files = sorted(path.name for path in folder.glob("test_*.py"))
    if not files:
        yield Finding(TESTS, "Unknown", f"{folder} has no test_*.py.", advice=WRITE)
    elif importlib.util.find_spec("pytest") is None:
        observed = f"{', '.join(files)} were not run: pytest is not installed."
        yield Finding(TESTS, "Unknown", observed, advice="Install it: pip install pytest")
    else:
        yield _run(folder, files, seconds)


def _run(folder: Path, files: Sequence[str], seconds: float) -> Finding:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": COLUMNS}
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", *files]
    again = f"Run `pytest {' '.join(files)}` in {folder}, and correct what it names."
    with tempfile.TemporaryFile() as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        with running(command, cwd=folder, env=variables, **streams) as process:
            code = ended(process, seconds)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    if code is None:
        return Finding(TESTS, "Fail", f"The tests had not ended after {seconds:.0f} s.", advice=again)
    last = lines[-1] if lines else "it printed nothing"
    if code == PASSED:
        return Finding(TESTS, "Pass", f"{', '.join(files)}: {last}.")
    if code == NONE_FOUND:
        return Finding(TESTS, "Unknown", f"{', '.join(files)} have no tests.", advice=WRITE)
    shown = Example("pytest", excerpt("\n".join(_summary(lines))))
    return Finding(TESTS, "Fail", f"{', '.join(files)}: {last}.", advice=again, examples=(shown,))


def _summary(lines: Sequence[str]) -> Sequence[str]:
    """The first lines that name a failed test; if there are none, the last lines."""
    named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return named[:LINES] or lines[-LINES:]
