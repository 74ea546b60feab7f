"""What an evaluation's gate requires, and which requirements no result could ever meet.

Tasks are known only after the rows are read, so the preflight checks those.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule
from headway_api.spec.types import Decimal, Label

if TYPE_CHECKING:
    from headway_api.spec.evaluation import RLEvalJobSpec

MORE_IS_BETTER: Final = (
    "reward",
    "external_score",
    "success",
    "success_by_reward",
    "completion",
    "format",
)
"""Measures that are better when higher, except those of `OPEN` and pass@k."""
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
"""Measures that are better when lower, except those of single tools."""
OF_A_TOOL: Final = "tool_calls_"
OPEN: Final = ("metric_", OF_A_TOOL)
"""Prefixes of names that the environment, or the tools that were called, complete."""
METRIC_LENGTH: Final = len(OF_A_TOOL) + 64
"""Most characters of a metric's name: the part from the environment or a tool has at most 64."""
PASSES: Final = "^pass_(at|power)_[1-9][0-9]*(_by_reward)?$"
SHARES: Final = (
    "success",
    "success_by_reward",
    "failed_tool_calls",
    "malformed_tool_calls",
    "turn_limit",
    "token_limit",
    "agent_error",
    "infra_error",
)
"""Measures that lie between 0 and 1 in every environment, as pass@k does."""
SHARE: Final = "^(0([.][0-9]*)?|1([.]0*)?)$"
"""Numbers from 0 to 1, compared as text: CEL's numbers are less exact than the text."""
TURN_LIMIT: Final = "turn_limit"
"""The measure that exists only with Headway's own loop."""


def _listed(names: tuple[str, ...]) -> str:
    return "['" + "', '".join(names) + "']"


def _is_known(metric: str) -> bool:
    static = metric in MORE_IS_BETTER + LESS_IS_BETTER
    return static or metric.startswith(OPEN) or re.search(PASSES, metric) is not None


def _less_is_better(metric: str) -> bool:
    return metric in LESS_IS_BETTER or metric.startswith(OF_A_TOOL)


def _is_share(metric: str) -> bool:
    return metric in SHARES or re.search(PASSES, metric) is not None


_IS_SHARE: Final = f"(self.metric in {_listed(SHARES)} || self.metric.matches('{PASSES}'))"


MetricName = Annotated[
    str,
    Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_]*$", max_length=METRIC_LENGTH),
    Rule(
        f"self in {_listed(MORE_IS_BETTER + LESS_IS_BETTER)} || "
        + " || ".join(f"self.startsWith('{prefix}')" for prefix in OPEN)
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
            "spec.gate.noWorse[].margin must be below 1 of a metric that lies between 0 and 1: no result "
            "could fail the condition; write a margin such as 0.05",
            lambda self: not _is_share(self.metric) or float(self.margin) < 1,
            "margin",
        ),
    )

    metric: MetricName
    """Metric that is compared."""
    task: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Task that it is compared on: a suite's name, a value of spec.data.taskColumn, or all, which is every
    row of spec.data. Absent: the gate's task."""
    margin: Annotated[
        Decimal,
        _at_least_0("spec.gate.noWorse[].margin", "to ask for a gain, use spec.gate.mustBeat"),
    ] = "0"
    """How far the lower bound of the paired difference may lie below 0."""


class Gate(SpecModel):
    """What must hold for the job to succeed. A promotion may wait for it."""

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
            "spec.gate.minimum must be at most 1 of a metric that lies between 0 and 1: no result could "
            "reach it; write a share such as 0.80",
            lambda self: self.minimum is None or not _is_share(self.metric) or float(self.minimum) <= 1,
            "minimum",
        ),
        Rule(
            f"!has(self.mustBeat) || !{_IS_SHARE} || double(self.margin) < 1.0",
            "spec.gate.margin must be below 1 of a metric that lies between 0 and 1: no result could beat "
            "another by more; write a margin such as 0.05",
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
    """Largest share of a candidate's tries that may be lost to InfraError. Above it the gate does not pass.
    No figure counts lost tries, and hard rows are lost more often, for instance to the time limit."""


def _asked(spec: "RLEvalJobSpec") -> Iterator[tuple[str, str]]:
    """Every metric that the gate names, with the task that the gate judges it on."""
    if spec.gate is not None:
        yield spec.gate.metric, spec.gate.task
        yield from ((bound.metric, bound.task or spec.gate.task) for bound in spec.gate.no_worse)


def _of_each(condition: str) -> str:
    """CEL that is true if `condition` is true for every {metric} and {task} that the gate names."""
    own = condition.format(metric="self.gate.metric", task="self.gate.task")
    bound = condition.format(metric="n.metric", task="(has(n.task) ? n.task : self.gate.task)")
    return f"({own}) && (!has(self.gate.noWorse) || self.gate.noWorse.all(n, {bound}))"


def _k_is_asked(spec: "RLEvalJobSpec") -> bool:
    known = {str(k) for k in spec.evaluation.pass_k}
    return all(metric.split("_")[2] in known for metric, _ in _asked(spec) if re.search(PASSES, metric))


_K_IS_ASKED: Final = _of_each(
    f"!{{metric}}.matches('{PASSES}') || "
    "self.evaluation.passK.exists(k, {metric}.split('_')[2] == string(k))"
)


def _suite_has_tries(spec: "RLEvalJobSpec") -> bool:
    epochs = {suite.name: suite.epochs for suite in spec.suites}
    return all(
        int(metric.split("_")[2]) <= epochs[task]
        for metric, task in _asked(spec)
        if task in epochs and re.search(PASSES, metric)
    )


_SUITE_HAS_TRIES: Final = _of_each(
    f"{{task}} != s.name || !{{metric}}.matches('{PASSES}') || int({{metric}}.split('_')[2]) <= s.epochs"
)


def _has_turn_limit(spec: "RLEvalJobSpec") -> bool:
    suites = {suite.name for suite in spec.suites}
    tasks = [task for metric, task in _asked(spec) if metric == TURN_LIMIT]
    return not tasks or (spec.agent.is_builtin and suites.isdisjoint(tasks))


_NO_TURN_LIMIT: Final = _of_each(f"{{metric}} != '{TURN_LIMIT}'")
_NO_TURN_LIMIT_OF_S: Final = _of_each(f"{{metric}} != '{TURN_LIMIT}' || {{task}} != s.name")


def _compared(spec: "RLEvalJobSpec") -> Iterator[str]:
    """Candidates that the gate compares."""
    if spec.gate is not None:
        yield from (name for name in (spec.gate.candidate, spec.gate.must_beat) if name is not None)


def _asks_a_suite(spec: "RLEvalJobSpec") -> bool:
    suites = {suite.name for suite in spec.suites}
    return spec.gate is not None and not suites.isdisjoint(
        {spec.gate.task, *(bound.task for bound in spec.gate.no_worse)}
    )


def _is_sampled_in_suites(spec: "RLEvalJobSpec") -> bool:
    stored = {candidate.name for candidate in spec.candidates if candidate.rescore is not None}
    return stored.isdisjoint(_compared(spec)) or not _asks_a_suite(spec)


OF_AN_EVALUATION: Final = (
    Rule(
        f"!has(self.gate) || ({_K_IS_ASKED})",
        "spec.gate: the k of a metric pass_at_k or pass_power_k must be one of spec.evaluation.passK; add it "
        "there, or name another metric",
        _k_is_asked,
        "gate",
    ),
    Rule(
        f"!has(self.gate) || !has(self.suites) || self.suites.all(s, {_SUITE_HAS_TRIES})",
        "spec.gate: the k of a metric pass_at_k or pass_power_k of a suite must be at most the suite's "
        "epochs, its tries on a sample; raise spec.suites[].epochs, or name another metric",
        _suite_has_tries,
        "gate",
    ),
    Rule(
        f"!has(self.gate) || ({_NO_TURN_LIMIT}) || (!has(self.agent.http) && !has(self.agent.sandboxed) && "
        f"(!has(self.suites) || self.suites.all(s, {_NO_TURN_LIMIT_OF_S})))",
        "spec.gate names turn_limit, which is always 0 in a suite and of spec.agent.http and "
        "spec.agent.sandboxed: nobody counts their turns; name another metric, or a task of spec.data",
        _has_turn_limit,
        "gate",
    ),
    Rule(
        "!has(self.gate) || !has(self.suites) || !self.suites.exists(s, s.name == self.gate.task || "
        "(has(self.gate.noWorse) && self.gate.noWorse.exists(n, has(n.task) && n.task == s.name))) || "
        "!self.candidates.exists(c, has(c.rescore) && (c.name == self.gate.candidate || "
        "(has(self.gate.mustBeat) && c.name == self.gate.mustBeat)))",
        "spec.gate compares a candidate of rescore in a suite, where nobody samples for it; name another "
        "candidate in spec.gate.candidate and spec.gate.mustBeat, or another task",
        _is_sampled_in_suites,
        "gate",
    ),
)
"""What the whole spec must satisfy so that its gate can be judged."""
