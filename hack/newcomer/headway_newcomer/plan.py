"""Chooses the code blocks of the documentation that a new user follows, their order, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from doc_blocks import Block, Table, typed

PAGE: Final = "docs/first-environment.md"
CLUSTER: Final = "## On a cluster"
"""Title in `PAGE` after which the steps need a cluster."""
TRY: Final = "make try"
"""The only command of the README that the run types. The README's other commands are skipped."""


class Part(StrEnum):
    """The parts of the documentation that a run can follow."""

    TRY = "try"
    PAGE = "page"
    CLUSTER = "cluster"


class How(StrEnum):
    """What a reader does with a block."""

    TYPE = "type"
    """The reader types its commands, which succeed."""
    FAIL = "fail"
    """The reader types its commands. The last one fails, as the page says, and the last change is undone."""
    CHANGE = "change"
    """The reader replaces lines of the environment with its lines."""
    WRITE = "write"
    """The reader writes its fields into the job, with the fields that commands have printed."""
    READ = "read"
    """The reader does nothing: the project has the block already, or another block replaces it here."""


HOW: Final = Table(
    {
        (PAGE, "def oracle"): How.READ,
        (PAGE, "ACTION ="): How.CHANGE,
        (PAGE, "self.expected.values()"): How.CHANGE,
        (PAGE, "scorer-mutants"): How.FAIL,
        (PAGE, "$ headway submit job.yaml --watch"): How.READ,
        (PAGE, "uri: s3://headway/runs"): How.WRITE,
    }
)
"""Block -> what a reader does with it. Console blocks that are not listed are typed."""
ELSEWHERE: Final = "s3://bucket/"
"""Stands for a reader's own bucket. Commands with it are skipped: a later block has them with the demo's
bucket.
"""


class UnknownBlockError(Exception):
    """The page has a block without an entry in `HOW`; the message says where to add one."""


@dataclass(frozen=True)
class Step:
    """A block, and what the reader does with it."""

    block: Block
    part: Part
    how: How
    lines: tuple[str, ...] = ()
    """The command lines to type."""


def steps(blocks: Iterable[Block], page: str, readme: Iterable[Block]) -> Iterator[Step]:
    """All steps, in the order of the pages.

    Args:
        blocks: the blocks of `PAGE`, whose text is `page`.
        readme: the blocks of README.md.
    Raises:
        UnknownBlockError: `HOW` has no entry for a block that needs one.
    """
    for block in readme:
        if lines := tuple(each.text for each in typed(block) if each.text.startswith(f"{TRY} ")):
            yield Step(block, Part.TRY, How.TYPE, lines)
    begins = page.splitlines().index(CLUSTER) + 1
    for block in blocks:
        yield _step(block, Part.CLUSTER if block.line > begins else Part.PAGE)


def _step(block: Block, part: Part) -> Step:
    how = HOW.get(block) or (How.TYPE if block.language == "console" else None)
    if how is None:
        raise UnknownBlockError(
            f"{block}: add to HOW in hack/newcomer/headway_newcomer/plan.py what a reader does with it"
        )
    lines = [each.text for each in typed(block)] if how in (How.TYPE, How.FAIL) else []
    return Step(block, part, how, tuple(each for each in lines if ELSEWHERE not in each))
