"""Which blocks of the documentation a new user follows, in which order, and how. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from doc_blocks import Block, Table, typed

PAGE: Final = "docs/first-environment.md"
CLUSTER: Final = "## On a cluster"
"""Title in `PAGE` from which a cluster is needed."""
TRY: Final = "make try"
"""The README shows it beside commands that a new user does not need."""


class Part(StrEnum):
    """What a run of this script follows."""

    TRY = "try"
    PAGE = "page"
    CLUSTER = "cluster"


class How(StrEnum):
    """What a reader does with a block."""

    TYPE = "type"
    """Its commands succeed."""
    FAIL = "fail"
    """Its last command fails, as the page says; then the reader undoes the last change."""
    CHANGE = "change"
    """Its lines replace lines of the environment."""
    WRITE = "write"
    """Its fields go into the job, with the fields that commands have printed."""
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
"""What is done with a block. The commands of all others are typed."""
ELSEWHERE: Final = "s3://bucket/"
"""A bucket of the reader's own: commands with it are typed further down, with the demo's bucket."""


class UnknownBlockError(Exception):
    """The page has a block that no reader's action is known for; the message says where to add it."""


@dataclass(frozen=True)
class Step:
    """A block, and what is done with it."""

    block: Block
    part: Part
    how: How
    lines: tuple[str, ...] = ()
    """What is typed."""


def steps(blocks: Iterable[Block], page: str, readme: Iterable[Block]) -> Iterator[Step]:
    """What to do, in the order of the pages.

    Args:
        blocks: those of `PAGE`, whose text is `page`.
        readme: those of README.md.
    Raises:
        UnknownBlockError: there is a block that nothing is known for.
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
