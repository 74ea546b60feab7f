"""What an evaluation's gate requires, and which requirements no result could ever meet.

The names of tasks are known only after the rows are read, so the preflight checks a gate's tasks.
"""

import re
from typing import Annotated, Final, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Decimal, Label
from headway_api.rules import Rule

MORE_IS_BETTER: Final = (
    "reward",
    "external_score",
    "success",
    "success_by_reward",
    "completion",
    "format",
)
"""Measures that are better when higher, without pass@k and names that begin with one of `OPEN_PREFIXES`."""
LESS_IS_BETTER: Final = (
    "turns",
    "prompt_tokens",
    "cached_tokens",
    "sampled_tokens",
    "seconds",
    "sandbox_seconds",
    "tool_calls",
    "failed_tool_calls",
    "malformed_tool_calls",
    "turn_limit",
    "token_limit",
    "agent_error",
    "infra_error",
    "cost",
    "cost_per_success",
)
"""Measures that are better when lower, without those of single tools (`OF_A_TOOL`)."""
OF_A_TOOL: Final = "tool_calls_"
OPEN_PREFIXES: Final = ("metric_", OF_A_TOOL)
"""Prefixes of measures whose names end in the name of an environment's metric or of a tool."""
NEVER_REPORTED: Final = (*OPEN_PREFIXES, "metric_completion", "metric_format")
"""Names that begin with one of `OPEN_PREFIXES` but that no measure has. The metrics `completion` and
`format` of an environment become measures without a prefix."""
METRIC_LENGTH: Final = len(OF_A_TOOL) + 64
"""Maximum characters of a metric's name: the longest prefix, and 64 for the name of a metric or a tool."""
PASSES: Final = "^pass_(at|power)_[1-9][0-9]*(_by_reward)?$"
SHARE_MEASURES: Final = (
    "success",
    "success_by_reward",
    "failed_tool_calls",
    "malformed_tool_calls",
    "turn_limit",
    "token_limit",
    "agent_error",
    "infra_error",
)
"""Measures that are shares of tries or of tool calls. pass@k, a mean over rows, also lies between 0 and 1."""
BETWEEN_0_AND_1: Final = (*SHARE_MEASURES, "completion")
"""Measures that lie between 0 and 1. An environment may report its own `completion`, in the same unit."""
SHARE: Final = "^(0([.][0-9]*)?|1([.]0*)?)$"
"""Pattern of a number from 0 to 1. Rules compare the text, because CEL's numbers are less exact."""
REWARD: Final = "reward"
"""The measure that spec.reward.range bounds, except in suites."""
TURN_LIMIT: Final = "turn_limit"
"""The measure that exists only with the platform's own agent loop."""


def _listed(names: tuple[str, ...]) -> str:
    return "['" + "', '".join(names) + "']"


def _is_known(metric: str) -> bool:
    static = metric in MORE_IS_BETTER + LESS_IS_BETTER
    opened = metric.startswith(OPEN_PREFIXES) and metric not in NEVER_REPORTED
    return static or opened or re.search(PASSES, metric) is not None


def _less_is_better(metric: str) -> bool:
    return metric in LESS_IS_BETTER or metric.startswith(OF_A_TOOL)


def _is_share(metric: str) -> bool:
    return metric in BETWEEN_0_AND_1 or re.search(PASSES, metric) is not None


_IS_SHARE: Final = f"(self.metric in {_listed(BETWEEN_0_AND_1)} || self.metric.matches('{PASSES}'))"


MetricName = Annotated[
    str,
    Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_]*$", max_length=METRIC_LENGTH),
    Rule(
        f"self in {_listed(MORE_IS_BETTER + LESS_IS_BETTER)} || "
        + " || ".join(
            f"(self.startsWith('{prefix}') && !(self in {_listed(NEVER_REPORTED)}))"
            for prefix in OPEN_PREFIXES
        )
        + f" || self.matches('{PASSES}')",
        "the metric of a gate must be a measure with an interval that docs/evaluation.md names; of the "
        "environment's own metric `field` write metric_{field}",
        _is_known,
    ),
]


def _at_least_0(field: str, instead: str) -> Rule:
    """A margin may not be negative, which would weaken the condition."""
    return Rule(
        "!self.startsWith('-')",
        f"{field} must be at least 0; {instead}",
        lambda value: not value.startswith("-"),
    )


class NoWorse(SpecModel):
    """A metric on which the candidate must not be worse."""

    validations = (
        Rule(
            f"!{_IS_SHARE} || double(self.margin) < 1.0",
            "spec.gate.noWorse[].margin must be below 1 of a metric between 0 and 1: no result could fail "
            "the condition; write a margin such as 0.05",
            lambda self: not _is_share(self.metric) or float(self.margin) < 1,
            "margin",
        ),
    )

    metric: MetricName
    """Metric that is compared."""
    task: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Task on which the metric is compared: a suite's name, a value of spec.data.taskColumn, or all, which is
    every row of spec.data. Absent: the gate's task."""
    margin: Annotated[
        Decimal,
        _at_least_0("spec.gate.noWorse[].margin", "to ask for a gain, use spec.gate.mustBeat"),
    ] = "0"
    """How far the lower bound of the paired difference may lie below 0."""


class Gate(SpecModel):
    """Conditions that a candidate must meet for the job to succeed. A promotion may wait for them."""

    validations = (
        Rule(
            "has(self.minimum) || has(self.mustBeat)",
            "spec.gate needs at least one of minimum and mustBeat",
            lambda self: self.minimum is not None or self.must_beat is not None,
        ),
        Rule(
            "!has(self.noWorse) || size(self.noWorse) == 0 || has(self.mustBeat)",
            "spec.gate.noWorse compares with the candidate of spec.gate.mustBeat; name it",
            lambda self: not self.no_worse or self.must_beat is not None,
            "noWorse",
        ),
        Rule(
            "!has(self.mustBeat) || self.mustBeat != self.candidate",
            "spec.gate.mustBeat must name another candidate than spec.gate.candidate",
            lambda self: self.must_beat != self.candidate,
            "mustBeat",
        ),
        Rule(
            f"!has(self.minimum) || !(self.metric in {_listed(LESS_IS_BETTER)} || "
            f"self.metric.startsWith('{OF_A_TOOL}'))",
            "spec.gate.minimum cannot judge a measure that is better when lower; remove it, and use "
            "spec.gate.mustBeat or spec.gate.noWorse",
            lambda self: self.minimum is None or not _less_is_better(self.metric),
            "minimum",
        ),
        Rule(
            f"!has(self.minimum) || !{_IS_SHARE} || double(self.minimum) <= 1.0",
            "spec.gate.minimum must be at most 1 of a metric between 0 and 1: no result could reach it; "
            "write a share such as 0.80",
            lambda self: self.minimum is None or not _is_share(self.metric) or float(self.minimum) <= 1,
            "minimum",
        ),
        Rule(
            f"!has(self.minimum) || !{_IS_SHARE} || double(self.minimum) > 0.0",
            "spec.gate.minimum must be above 0 of a metric between 0 and 1: no result could be below it; "
            "write a share such as 0.80",
            lambda self: self.minimum is None or not _is_share(self.metric) or float(self.minimum) > 0,
            "minimum",
        ),
        Rule(
            f"!has(self.mustBeat) || !{_IS_SHARE} || double(self.margin) < 1.0",
            "spec.gate.margin must be below 1 of a metric between 0 and 1: no result could beat another by "
            "more; write a margin such as 0.05",
            lambda self: self.must_beat is None or not _is_share(self.metric) or float(self.margin) < 1,
            "margin",
        ),
    )

    candidate: Label
    """Candidate that is judged."""
    task: Annotated[str, Field(min_length=1, max_length=128)] = "all"
    """Task that is judged: a suite's name, a value of spec.data.taskColumn, or all, which is every row of
    spec.data."""
    metric: MetricName = "external_score"
    """Metric that the gate judges, as docs/evaluation.md names it."""
    minimum: Decimal | None = None
    """Lowest value that passes."""
    minimum_of: Literal["LowerBound", "Value"] = "LowerBound"
    """What is compared with minimum. LowerBound: the least value that the rows support, as docs/evaluation.md
    says. Value: the value itself. With Value, a candidate whose true value is below minimum may pass by
    luck."""
    must_beat: Label | None = None
    """Candidate to beat: the lower bound of the paired difference must lie above margin."""
    margin: Annotated[
        Decimal,
        _at_least_0("spec.gate.margin", "to allow a loss, use spec.gate.noWorse"),
    ] = "0"
    """How far above 0 the lower bound of the paired difference must lie."""
    no_worse: Annotated[tuple[NoWorse, ...], Field(max_length=8)] = ()
    """Further metrics on which the candidate must not be worse than the candidate of mustBeat."""
    max_lost: Annotated[
        Decimal,
        Rule(
            f"self.matches('{SHARE}')",
            "spec.gate.maxLost is a share: write a number from 0 to 1",
            lambda value: re.fullmatch(SHARE, value) is not None,
        ),
    ] = "0.05"
    """Largest share of a candidate's tries that may be lost to InfraError. Above this share the gate does not
    pass. No measure counts lost tries, and hard rows are lost more often, for instance to the time limit."""
