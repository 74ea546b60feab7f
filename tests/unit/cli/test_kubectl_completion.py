"""Completion of `kubectl headway`: the program that kubectl runs, and how a shell uses its output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from headway_cli.app import app

PROGRAMS = Path(sys.executable).parent
COMPLETE = PROGRAMS / "kubectl_complete-headway"
FILES, NO_FILES = ":0", ":4"
# Like kubectl: it runs the program with the words typed so far, and reads the directive from the last line.
AS_KUBECTL = """
complete_plugin() {
  local out directive
  out=$(command "kubectl_complete-$1" "${@:2}") || return 1
  directive=${out##*$'\\n'}
  [[ $directive == :* ]] || return 1
  [[ $out == *$'\\n'* ]] && printf '%s\\n' "${out%$'\\n'*}" | cut -f1
  (( ${directive#:} & 4 )) || compgen -f -- "${@: -1}"
}
complete_plugin headway "$@"
"""
ENVIRONMENT = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ.get('PATH', '/usr/bin:/bin')}"}


def answer(*words: str) -> list[str]:
    """The program's output lines for words typed after `kubectl headway`."""
    done = subprocess.run([COMPLETE, *words], text=True, capture_output=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_every_verb_is_offered_with_its_help() -> None:
    *lines, directive = answer("")
    assert [line.split("\t")[0] for line in lines] == list(typer.main.get_command(app).commands)
    assert all(line.split("\t")[1] for line in lines)
    assert directive == NO_FILES


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("tra",), ["trajectories"]),
        (("trajectories", "--dis"), ["--disagree"]),
        (("watch", "--kind", ""), ["training", "eval"]),
        (("watch", "--kind=ev",), ["eval"]),
        (("data", ""), ["push"]),
        (("watch", "it's \"mine\"", "--pl"), ["--plain"]),
    ],
    ids=str,
)  # fmt: skip
def test_words_are_completed(words: tuple[str, ...], values: list[str]) -> None:
    *lines, directive = answer(*words)
    assert [line.split("\t")[0] for line in lines] == values
    assert directive == NO_FILES


def test_a_file_is_left_to_the_shell() -> None:
    assert answer("submit", "") == [FILES]
    assert answer("submit", "job") == [FILES]


def test_an_option_without_a_result_prints_nothing() -> None:
    """The words before the last one are parsed but not executed."""
    assert not any(line.startswith("headway ") for line in answer("--version", ""))


@pytest.mark.parametrize(
    ("words", "values"),
    [(("tra",), ["trajectories"]), (("submit", "job"), ["job.yaml"]), (("watch", "--out"), ["--output"])],
    ids=str,
)
def test_bash_asks_as_kubectl_does(words: tuple[str, ...], values: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    asked = ["bash", "--norc", "-c", AS_KUBECTL, "bash", *words]
    done = subprocess.run(asked, env=ENVIRONMENT, cwd=tmp_path, text=True, capture_output=True, timeout=100)
    assert done.stdout.splitlines() == values, done.stderr
