"""A test runs every command that a page shows, or a reason says why not.

This file runs those that need only files.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from doc_blocks import ROOT
from doc_runs import RULES, CommandRunner, Entry, NotRun, lines, run_by, runs
from doc_shell import DocShell

EXAMPLE = ROOT / "examples" / "sop-quickstart"
PATHS = re.compile(r"\b(?:tests|hack)/[\w/.]+\w")


def test_each_command_has_a_place_that_runs_it() -> None:
    assert [f"{block}: {line.text}" for block, line in lines() if runs(block, line) is None] == [], (
        "add a rule to tests/support/doc_runs.py"
    )


def test_each_rule_decides_for_some_command() -> None:
    deciding = {next(rule for rule in RULES if rule.fits(block.page, line.text)) for block, line in lines()}
    assert [rule for rule in RULES if rule not in deciding] == []


def test_places_and_reasons_name_files_that_exist() -> None:
    named = [
        *CommandRunner,
        *(path for rule in RULES if isinstance(rule.runs, NotRun) for path in PATHS.findall(rule.runs.why)),
    ]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_most_commands_are_run() -> None:
    found = [runs(block, line) for block, line in lines()]
    assert sum(isinstance(each, CommandRunner) for each in found) > 3 * sum(
        isinstance(each, NotRun) for each in found
    )


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> DocShell:
    """A shell in a copy of the example, as a reader has it."""
    folder = tmp_path_factory.mktemp("reader") / "desk"
    shutil.copytree(EXAMPLE, folder)
    return DocShell(folder, {})


@pytest.mark.parametrize("entry", run_by(CommandRunner.FILES), ids=str)
def test_a_command_of_a_page_succeeds(shell: DocShell, entry: Entry) -> None:
    shown = shell.type(*entry.texts)
    assert shown.output.strip(), "it shows nothing"


def test_a_failing_command_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no such thing"):
        DocShell(tmp_path, {"NAME": "thing"}).type("echo no such NAME >&2 # why", "false")


def test_a_watch_is_ended_and_must_show_something(tmp_path: Path) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\n[ $1 = some ] && echo shown\nexec sleep 60\n")
    (tmp_path / "kubectl").chmod(0o755)
    shell = DocShell(tmp_path, {"kubectl": "./kubectl"})
    assert shell.type("kubectl some -w").output == "shown\n"
    with pytest.raises(AssertionError, match="it shows nothing"):
        shell.type("kubectl none -w")
