"""Figures that are not as they were measured: noise laid over those of a real run."""

from __future__ import annotations

from collections.abc import Sequence

from tests.signals.circumstances import Circumstances
from tests.signals.series import Step


def noisy(circumstances: Circumstances, steps: Sequence[Step]) -> list[Step]:
    """The steps, with the run's noise if it has one."""
    return list(steps)


def explained(circumstances: Circumstances) -> str:
    """What was changed; empty where nothing was."""
    return ""
