"""Shell completion of the command line: the printed script, and what it offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = """
eval "$(headway --show-completion)"
COMP_WORDS=(headway tra)
COMP_CWORD=1
_headway_completion headway
printf '%s\\n' "${COMPREPLY[@]}"
COMP_WORDS=(headway trajectories --dis)
COMP_CWORD=2
_headway_completion headway
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { : }
_arguments() { print -r -- "$@" }
eval "$(headway --show-completion)"
words=(headway tra)
CURRENT=2
_headway_completion
words=(headway trajectories --dis)
CURRENT=3
_headway_completion
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `headway` is."""
    program = tmp_path / "headway"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m headway_cli "$@"\n')
    program.chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


def answer(words: list[str], path: str, **more: str) -> str:
    done = subprocess.run(
        words, env={**os.environ, "PATH": path, **more}, text=True, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_bash_completes_a_verb_and_an_option(path: str) -> None:
    assert answer(["bash", "--norc", "-c", BASH], path).splitlines() == ["trajectories", "--disagree"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh; the next test is without it")
def test_zsh_completes_a_verb_and_an_option(path: str) -> None:
    verb, option = answer(["zsh", "-f", "-c", ZSH], path).splitlines()
    assert '"trajectories":' in verb
    assert '"--disagree"' in option


def test_zsh_is_given_a_script_and_what_it_asks_for(path: str) -> None:
    """As in zsh, the words typed so far are in the environment."""
    script = answer(["headway"], path, _HEADWAY_COMPLETE="source_zsh")
    assert script.split("\n")[1] == "#compdef headway"
    assert "_HEADWAY_COMPLETE=complete_zsh" in script
    asked = {"_HEADWAY_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "headway tra"}
    assert '"trajectories":' in answer(["headway"], path, **asked)
    asked["_TYPER_COMPLETE_ARGS"] = "headway trajectories --dis"
    found = answer(["headway"], path, **asked)
    assert '"--disagree":' in found
    assert '"--limit":' not in found
