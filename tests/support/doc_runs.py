"""What runs each command that a page shows, or why nothing does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from doc_blocks import Block, Typed, of, typed


class CommandRunner(StrEnum):
    """What runs a command, by its path."""

    JOB = "tests/e2e/test_documented_commands.py"
    """A test on a cluster with a job that trains, and with an evaluation that has ended."""
    RUN = "tests/integration/cli/test_documented_runs.py"
    """A test with the folder of a job that ran on this machine."""
    FILES = "tests/unit/docs/test_commands_run.py"
    """A test that needs only files."""
    NEWCOMER = "hack/newcomer/newcomer.py"
    """Types the page as a new user would. `make newcomer` runs it, but neither `make test` nor CI does."""
    TEMPLATES = "tests/integration/cli/test_templates.py"
    """A test with a project of each template. `make test-long` runs it, not `make test` nor CI."""
    CLUSTER = "tests/integration/cluster/test_cluster.py"
    """A test that starts and stops a cluster."""
    ITSELF = "Makefile"
    """The command is a test itself, a target that `.ci/run` makes, or the target for the environment."""


@dataclass(frozen=True)
class NotRun:
    """Why nothing runs a command as the page shows it."""

    why: str


@dataclass(frozen=True)
class Rule:
    """The commands of some pages, and where they are run. The first rule that fits a command decides."""

    page: str
    """Regular expression for the page's whole path."""
    command: str
    """Regular expression for the beginning of the command."""
    runs: CommandRunner | NotRun

    def fits(self, page: str, command: str) -> bool:
        return bool(re.fullmatch(self.page, page) and re.match(self.command, command))


ANY: Final = ".*"
RULES: Final = (
    Rule("README.md", "make (demo|test)", CommandRunner.ITSELF),
    Rule("README.md", "make try", CommandRunner.NEWCOMER),
    Rule("README.md", "docker login|make images|CLUSTER=", NotRun("it needs an account at a registry")),
    Rule("README.md", "helm install", NotRun("the values are the reader's; the demo installs the chart")),
    Rule("CONTRIBUTING.md", ANY, CommandRunner.ITSELF),
    Rule("docs/first-environment.md", ANY, CommandRunner.NEWCOMER),
    Rule("docs/local.md", "make try|source ", CommandRunner.NEWCOMER),
    Rule("docs/(local|report).md", "headway .* -n team", CommandRunner.JOB),
    Rule("docs/(local|report).md", "headway ", CommandRunner.RUN),
    Rule("docs/cli.md", ANY, NotRun("its endpoint is made up; tests/integration/cli/test_doctor.py has one")),
    Rule(
        "docs/environments.md",
        "python3 hack/images",
        NotRun("the folder is the reader's; the demo builds one"),
    ),
    Rule("docs/evaluation-results.md", "python3 hack/recount_eval.py", CommandRunner.JOB),
    Rule("docs/evaluation-results.md", "inspect view", NotRun("it serves until a person stops it")),
    Rule(
        "docs/evaluation.md", "kubectl apply", NotRun("the demo applies this file with an image of its own")
    ),
    Rule("docs/gitops.md", ANY, NotRun("the evaluation and the folder deploy/ are the reader's")),
    Rule("examples/promote/README.md", "kubectl get rlev", CommandRunner.JOB),
    Rule(
        "examples/promote/README.md",
        ANY,
        NotRun("it needs Argo CD or Flux, and a repository; tests/integration/gitops reads these files"),
    ),
    Rule(
        "docs/(operations|recipes).md",
        ".*aws s3 ",
        NotRun("it needs the AWS command line, which `make venv` does not install"),
    ),
    Rule("docs/recipes.md", "python -m headway_api.recipes", CommandRunner.FILES),
    Rule("examples/sop-quickstart/README.md", "make demo", CommandRunner.ITSELF),
    Rule("examples/sop-quickstart/README.md", "(pytest|python generate.py) ", CommandRunner.FILES),
    Rule(
        "examples/sop-quickstart/README.md",
        "python base_model.py",
        NotRun("hack/demo/headway_demo/quickstart.py runs it"),
    ),
    Rule("examples/sop-quickstart/README.md", "python check_learnable.py", CommandRunner.RUN),
    Rule(
        "examples/sop-quickstart/README.md",
        "kubectl apply",
        NotRun("tests/e2e/test_agents.py applies these files with an image of its own"),
    ),
    Rule("examples/suites/README.md", "python3 hack/images", NotRun("it needs an account at a registry")),
    Rule(
        "examples/suites/README.md",
        "pip install|OPENAI_",
        NotRun("the endpoint and the key are the reader's"),
    ),
    Rule("cli/headway_cli/templates/.*", ANY, CommandRunner.TEMPLATES),
    Rule("hack/cluster/README.md", "sudo |eval ", CommandRunner.CLUSTER),
    Rule(ANY, "kubectl |curl ", CommandRunner.JOB),
)


def lines() -> Iterator[tuple[Block, Typed]]:
    """Every command of every page."""
    for block in of("console"):
        for line in typed(block):
            yield block, line


def runs(block: Block, line: Typed) -> CommandRunner | NotRun | None:
    """Where a command is run; None if no rule fits it."""
    return next((rule.runs for rule in RULES if rule.fits(block.page, line.text)), None)


@dataclass(frozen=True)
class Entry:
    """Lines of a block that are typed together."""

    block: Block
    lines: tuple[Typed, ...]

    @property
    def texts(self) -> list[str]:
        return [line.text for line in self.lines]

    def __str__(self) -> str:
        return f"{self.block}-{self.texts[0][:50]}"


def run_by(place: CommandRunner) -> list[Entry]:
    """The commands that one place runs, by page and line.

    A program in the background and the next line are one entry.
    """
    found: list[Entry] = []
    for block, line in lines():
        if runs(block, line) is not place:
            continue
        last = found[-1] if found else None
        if last and last.block == block and last.texts[-1].endswith("&"):
            found[-1] = Entry(block, (*last.lines, line))
        else:
            found.append(Entry(block, (line,)))
    return found
