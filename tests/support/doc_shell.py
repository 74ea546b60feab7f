"""Types a command that a page shows into a shell, with this machine's names instead of the page's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COMMENT = re.compile(r"\s+#\s.*$")
WATCH = re.compile(r"\s-w\b")
WATCH_SECONDS = 3
STOPPED = 124
"""Exit code of `timeout` when it has ended a program."""
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Shown:
    """The output of a command that succeeded."""

    output: str
    errors: str


@dataclass(frozen=True)
class DocShell:
    """A reader's shell, in a folder."""

    folder: Path
    names: Mapping[str, str]
    """Regular expression for what a page writes -> what replaces it here. They apply in this order."""
    environ: Mapping[str, str] = field(default_factory=dict)

    def type(self, *lines: str, patience_s: float = PATIENCE_SECONDS) -> Shown:
        """Type lines one after another, and wait two seconds for a program in the background.

        A command with `-w` is ended after three seconds. By then it must have printed something.

        Raises:
            AssertionError: a line failed, or a watch printed nothing.
        """
        watches = any(WATCH.search(line) for line in lines)
        script = "\n".join(["set -euo pipefail", *map(self.here, lines)])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**os.environ, "PATH": self._path(), **self.environ},
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
        assert done.returncode == (STOPPED if watches else 0), f"{script}\n{done.stdout}{done.stderr}"
        assert done.stdout or not watches, f"{script}: it shows nothing"
        return Shown(done.stdout, done.stderr)

    def here(self, line: str) -> str:
        """A line of a page as it is typed on this machine."""
        line = COMMENT.sub("", line)
        for pattern, instead in self.names.items():
            line = re.sub(pattern, instead, line)
        if WATCH.search(line):
            line = f"timeout {WATCH_SECONDS} {line}"
        if line.endswith("&"):
            line = f"{line}\ntrap 'kill %%' EXIT\nsleep 2"
        return line

    def _path(self) -> str:
        """The PATH, with this environment's programs first. A missing jq is replaced by a script that copies
        its input."""
        own = self.folder / "bin"
        own.mkdir(exist_ok=True)
        if not shutil.which("jq"):
            (own / "jq").write_text("#!/bin/sh\ncat\n")
            (own / "jq").chmod(0o755)
        return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(own)])
