"""Evaluates a run of the documentation: times of blocks, and held-out success by step. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .plan import Step

HELD_OUT: Final = re.compile(r"\bheld-out ([\d.]+)(%?)[^(\n]*\(step (\d+)\)")
"""Held-out success in the lines of `headway run` and `headway submit --watch`."""
BEFORE_AFTER: Final = re.compile(r"before ([\d.]+)%   after ([\d.]+)%")
"""Held-out success in the report of `make try`."""
ADVICE: Final = re.compile(r"^warning: it never succeeded: write (--seconds \d+)", re.MULTILINE)
"""The warning of `headway tiny-model` on a machine that is too busy."""
WIDEST: Final = 78
"""Maximum characters of the typed commands that the table shows."""


@dataclass(frozen=True)
class Taken:
    """A step with its time and its output."""

    step: Step
    seconds: float
    printed: str


def held_out(printed: str) -> dict[int, float]:
    """Step -> held-out success, from 0 to 1, in the order in which it was printed."""
    found = HELD_OUT.findall(printed)
    return {int(step): float(value) / (100 if percent else 1) for value, percent, step in found}


def rise(printed: str) -> tuple[float, float] | None:
    """Held-out success before and after training; None if the text has no training job."""
    if report := BEFORE_AFTER.search(printed):
        return float(report[1]) / 100, float(report[2]) / 100
    curve = held_out(printed)
    return (curve[min(curve)], curve[max(curve)]) if len(curve) > 1 else None


def advice(printed: str) -> str | None:
    """The command that an output advises to type next; None if it advises none."""
    found = ADVICE.search(printed)
    return f"headway tiny-model {found[1]}" if found else None


def trains(step: Step) -> bool:
    """Whether the step trains a job. Held-out success must then rise."""
    return any(line.startswith(("make try", "headway run ", "headway submit ")) for line in step.lines)


def faults(taken: Sequence[Taken]) -> Iterator[str]:
    """A sentence for each training job whose held-out success did not rise."""
    for each in taken:
        if not trains(each.step):
            continue
        found = rise(each.printed)
        if found is None:
            yield f"{each.step.block}: it printed no held-out success of two steps"
        elif found[1] <= found[0]:
            yield f"{each.step.block}: held-out success went from {found[0]:.2f} to {found[1]:.2f}"


def table(taken: Sequence[Taken]) -> str:
    """A table of the blocks with their seconds, and with the success of the jobs that they trained."""
    where = max(len(str(each.step.block)) for each in taken)
    lines = [f"{'block':<{where}}  {'seconds':>8}  typed"]
    for each in taken:
        shown = "; ".join(re.sub(r"\s+#.*", "", line) for line in each.step.lines)
        shown = shown if len(shown) <= WIDEST else f"{shown[: WIDEST - 3]}..."
        lines.append(f"{each.step.block!s:<{where}}  {each.seconds:8.1f}  {shown}")
        if trains(each.step) and (found := rise(each.printed)):
            lines.append(f"{'':<{where}}  {'':>8}  held-out success {found[0]:.2f} -> {found[1]:.2f}")
    lines.append(f"{'in all':<{where}}  {sum(each.seconds for each in taken):8.1f}")
    return "\n".join(lines)
