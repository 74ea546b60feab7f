"""The build that runs beside the demo: it is awaited and reported, and ends with all its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from headway_demo import programs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    monkeypatch.delenv(programs.BEGUN, raising=False)
    return tmp_path


def builds(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(programs, "COMMAND", ("/bin/sh", "-c", script))


def test_the_time_of_each_program_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builds(monkeypatch, "echo building a program ... 3.2 s")
    with programs.building() as build:
        build.wait()
    assert capsys.readouterr().out == "building a program ... 3.2 s\n"


def test_a_build_that_fails_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builds(monkeypatch, "echo no module proxy >&2; exit 3")
    with programs.building() as build, pytest.raises(subprocess.CalledProcessError) as caught:
        build.wait()
    assert caught.value.returncode == 3
    assert "no module proxy" in capsys.readouterr().out


def test_a_cancelled_build_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    builds(monkeypatch, f"sleep 300 & echo $! > {cache}/child; wait")
    with programs.building() as build:
        while not (cache / "child").exists() or not (cache / "child").read_text():
            time.sleep(0.01)
        child = psutil.Process(int((cache / "child").read_text()))
    child.wait(timeout=10)
    assert not psutil.pid_exists(build.pid)


def test_an_earlier_build_is_awaited_instead_of_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    builds(monkeypatch, "sleep 0.1")
    begun = programs.begin()
    monkeypatch.setenv(programs.BEGUN, str(begun.pid))
    builds(monkeypatch, "exit 9")
    with programs.building() as build:
        build.wait()
    assert build.pid == begun.pid
    assert programs.BEGUN not in os.environ
