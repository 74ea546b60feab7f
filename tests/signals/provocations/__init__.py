"""Runs that provoke the symptoms, and the step from which they show.

If something is changed at a step, the symptom begins there. If it emerges by itself, a rule over raw metrics
finds its begin (`rules.py`).
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
