"""The command line, and the loop that follows the documentation's steps."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from doc_blocks import ROOT, blocks, pages

from . import local_cluster, outcome, plan, project
from .local_cluster import NoClusterError
from .outcome import Taken
from .plan import How, Part, Step
from .project import LinesNotFoundError
from .shell import Shell, Typed, variables

CHECKOUT: Final = "headway"
"""Name of the clone's folder, as `git clone` chooses it."""
FOLLOWED: Final = ("console", "python", "yaml")
"""Languages of the code blocks that a reader acts on."""
INTERRUPTED: Final = 130
TAIL: Final = 4000
"""Maximum characters of a failed block's output that are shown."""


class BlockFailedError(Exception):
    """A block did not do what its page says; the message has the block's output."""


class Newcomer:
    """Takes one step after another, and keeps the output of the last ones."""

    def __init__(self, shell: Shell, checkout: Path) -> None:
        self._shell = shell
        self._checkout = checkout
        self._before: str | None = None
        """Source of the environment before the last change, to undo that change."""
        self._printed = ""
        """Output of all commands so far."""

    def take(self, step: Step) -> Taken:
        """Take a step.

        Raises:
            BlockFailedError: the result of the step differs from what the page says.
            LinesNotFoundError: the project lacks the lines that the step changes.
        """
        print(f"==> {step.block}  {'; '.join(step.lines) or step.how}", flush=True)
        if step.how is How.CHANGE:
            file = self._shell.folder / "environment.py"
            self._before = file.read_text()
            file.write_text(project.changed(self._before, step.block.text))
        elif step.how is How.WRITE:
            file = self._shell.folder / "job.yaml"
            file.write_text(project.filled(file.read_text(), step.block.text, self._printed))
        if not step.lines:
            return Taken(step, 0.0, "")
        made = self._typed(step, step.lines)
        if again := outcome.advice(made.printed):
            print(f"    {made.seconds:.1f} s; then as the command advises: {again}", flush=True)
            longer = self._typed(step, [again])
            made = Typed(longer.code, made.seconds + longer.seconds, made.printed + longer.printed)
        self._printed += made.printed
        if step.how is How.FAIL and self._before is not None:
            (self._shell.folder / "environment.py").write_text(self._before)
        print(f"    {made.seconds:.1f} s", flush=True)
        return Taken(step, made.seconds, made.printed)

    def _typed(self, step: Step, lines: Sequence[str]) -> Typed:
        made = self._shell.type([local_cluster.here(line) for line in lines])
        wanted = int(step.how is How.FAIL)
        if made.code != wanted:
            output = made.printed[-TAIL:]
            raise BlockFailedError(f"{step.block}: exit status {made.code} instead of {wanted}\n{output}")
        return made

    def prepare(self, line: str) -> None:
        """Type a line that is on no page, in the checkout's folder.

        Raises:
            BlockFailedError: the line failed.
        """
        made = self._shell.type([f"(cd {self._checkout} && {line})"])
        if made.code:
            raise BlockFailedError(f"{line}: exit status {made.code}\n{made.printed[-TAIL:]}")


def chosen(parts: Sequence[str]) -> list[Step]:
    """The steps of the chosen parts, in the order of the pages."""
    followed = [each for each in blocks() if each.language in FOLLOWED]
    page = [each for each in followed if each.page == plan.PAGE]
    readme = [each for each in followed if each.page == "README.md" and each.language == "console"]
    return [each for each in plan.steps(page, pages()[plan.PAGE], readme) if each.part in parts]


def follow(root: Path, parts: Sequence[str], *, warm: bool) -> list[Taken]:
    """Take the steps of these parts in an empty folder.

    Args:
        root: the empty folder.
        warm: use this checkout and its cache, instead of a clone and an empty cache.
    Raises:
        BlockFailedError: the result of a step differs from what its page says.
    """
    home, state, checkout = root / "home", root / "state", root / CHECKOUT
    home.mkdir(parents=True)
    cluster = Part.CLUSTER in parts
    own = variables(os.environ, home) | (local_cluster.variables(state) if cluster else {})
    if warm:
        own["HEADWAY_CACHE"] = os.environ.get("HEADWAY_CACHE") or str(Path.home() / ".cache" / "headway")
        checkout.symlink_to(ROOT)
    else:
        subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    taken: list[Taken] = []
    with contextlib.ExitStack() as stack:
        newcomer = Newcomer(stack.enter_context(Shell(checkout, state, own)), checkout)
        if cluster:
            stack.enter_context(local_cluster.registry(state))
            newcomer.prepare(local_cluster.sandbox_image())
        try:
            for step in chosen(parts):
                taken.append(newcomer.take(step))
        finally:
            if typed := [each for each in taken if each.step.lines]:
                print("\n" + outcome.table(typed), flush=True)
    return taken


def main(arguments: Sequence[str], description: str | None) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*Part, []], default=[], help="try, page, cluster")
    parser.add_argument("--root", type=Path, help="a new folder, which is kept; default: one that is removed")
    parser.add_argument("--warm", action="store_true", help="take this checkout and its cache, not a clone")
    options = parser.parse_args(arguments)
    parts = options.parts or [Part.TRY, Part.PAGE]
    if Part.CLUSTER in parts and not (Part.PAGE in parts and options.warm):
        parser.error("the part cluster goes on where the page stops, on this checkout's cluster: page --warm")
    # A plain `kill` also ends the typed commands, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = options.root or Path(tempfile.mkdtemp(prefix="headway-newcomer-"))
    try:
        if Part.CLUSTER in parts:
            local_cluster.require()
        faults = [*outcome.faults(follow(root.absolute(), parts, warm=options.warm))]
    except KeyboardInterrupt:
        print(f"newcomer: stopped; the folder {root} is kept", file=sys.stderr, flush=True)
        return INTERRUPTED
    except (
        BlockFailedError,
        LinesNotFoundError,
        NoClusterError,
        subprocess.SubprocessError,
        OSError,
    ) as error:
        faults = [str(error)]
    for fault in faults:
        print(f"newcomer: {fault}", file=sys.stderr, flush=True)
    if options.root is None and not faults:
        shutil.rmtree(root)
    else:
        print(f"newcomer: the folder {root} is kept", file=sys.stderr, flush=True)
    return int(bool(faults))
