"""Runs that provoke the symptoms, and from which step on.

Where something is changed at a step, the symptom begins there. Where it comes of itself, a rule over raw
metrics says where (`rules.py`).
"""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import Circumstances
from tests.signals.provocations import collapses, episodes, fresh, policies, rewards, sealed, untouched

RUNS: Final[tuple[Circumstances, ...]] = (
    *collapses.RUNS,
    *rewards.RUNS,
    *policies.RUNS,
    *episodes.RUNS,
    *fresh.RUNS,
    *untouched.RUNS,
    *sealed.RUNS,
)
