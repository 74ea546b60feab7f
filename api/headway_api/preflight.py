"""Names of the checks of baseline episodes. The spec, the coordinator and the documentation use them.

The checks themselves are in `headway_analysis.preflight`, which this package does not import.
"""

from __future__ import annotations

from typing import Final, Literal

CHECK_IDS: Final = (
    "deterministic",
    "isolated",
    "foothold",
    "reward-range",
    "reward-variance",
    "scorer-agrees",
    "judge-varies",
    "constant-guess",
    "scorer-mutants",
    "prompt-labels",
    "context-fits",
    "tools-like-production",
    "tool-calls-parse",
    "splits",
    "throughput",
)
"""Every check, in the order in which they are reported."""

Verdict = Literal["Pass", "Warn", "Fail", "Unknown"]
"""Result of a check. Unknown: too few episodes to tell, or something that the check needs was not given."""
Policy = Literal["Enforce", "Warn", "Off"]
"""What a failed check does to its job."""
