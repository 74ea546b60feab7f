"""All checks, in the order in which people read them."""

from __future__ import annotations

from typing import Final

from headway_analysis.preflight.checks import (
    constant_guess,
    context_fits,
    deterministic,
    foothold,
    isolated,
    judge_varies,
    prompt_labels,
    reward_range,
    reward_variance,
    scorer_agrees,
    scorer_mutants,
    splits,
    throughput,
    tool_calls_parse,
    tools_like_production,
)
from headway_analysis.preflight.definition import Check

CHECKS: Final[tuple[Check, ...]] = (
    deterministic.CHECK,
    isolated.CHECK,
    foothold.CHECK,
    reward_range.CHECK,
    reward_variance.CHECK,
    scorer_agrees.CHECK,
    judge_varies.CHECK,
    constant_guess.CHECK,
    scorer_mutants.CHECK,
    prompt_labels.CHECK,
    context_fits.CHECK,
    tools_like_production.CHECK,
    tool_calls_parse.CHECK,
    splits.CHECK,
    throughput.CHECK,
)
BY_ID: Final = {check.id: check for check in CHECKS}
