"""RLEvalJob: several candidates on the same rows and seeds, with a gate on the result."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from headway_api.base import Model, SpecModel
from headway_api.field_types import Label, ObjectName, Subdomain
from headway_api.rules import Keyed, Rule, frozen_while_running
from headway_api.spec.agent import AgentSpec
from headway_api.spec.candidate import BASE_SUFFIX, Candidate
from headway_api.spec.data import Dataset
from headway_api.spec.environment import EnvironmentSpec, RewardSpec
from headway_api.spec.gate import PASSES, REWARD, TURN_LIMIT, Gate
from headway_api.spec.judge import Judges
from headway_api.spec.lifecycle import MANAGER_PATTERN, BudgetSpec, OutputSpec, TrackingSpec
from headway_api.spec.metadata import NAME_RULES, Metadata
from headway_api.spec.rollout import ServersSpec
from headway_api.spec.suite import Suite
from headway_api.spec.training import EPISODE_WITHIN_SANDBOX, Deadline, FailurePolicySpec
from headway_api.spec.trust import MeasureSpec
from headway_api.status import RLEvalJobStatus

MAX_TOKENS = 4096
"""Maximum tokens of one turn if the spec does not say."""


def _named(self: "RLEvalJobSpec", name: str | None) -> bool:
    return name is None or name in self.candidate_names


def _bases_differ(candidates: Sequence[Candidate]) -> bool:
    jobs = [each.checkpoint.job for each in candidates if each.checkpoint and each.checkpoint.with_base]
    return len(set(jobs)) == len(jobs)


_NAMED = (
    "self.candidates.exists(c, c.name == {0} || "
    "(has(c.checkpoint) && c.checkpoint.withBase && c.name + '" + BASE_SUFFIX + "' == {0}))"
)


def _gated_metrics(spec: "RLEvalJobSpec") -> Iterator[tuple[str, str]]:
    """Each metric that the gate names, with the task on which the gate judges this metric."""
    if spec.gate is not None:
        yield spec.gate.metric, spec.gate.task
        yield from ((bound.metric, bound.task or spec.gate.task) for bound in spec.gate.no_worse)


def _of_each(condition: str) -> str:
    """A CEL expression: `condition` holds for each metric and task that the gate names.

    `condition` has the placeholders {metric} and {task}.
    """
    own = condition.format(metric="self.gate.metric", task="self.gate.task")
    bound = condition.format(metric="n.metric", task="(has(n.task) ? n.task : self.gate.task)")
    return f"({own}) && (!has(self.gate.noWorse) || self.gate.noWorse.all(n, {bound}))"


def _k_is_asked(spec: "RLEvalJobSpec") -> bool:
    known = {str(k) for k in spec.evaluation.pass_k}
    return all(
        metric.split("_")[2] in known for metric, _ in _gated_metrics(spec) if re.search(PASSES, metric)
    )


_K_IS_ASKED: Final = _of_each(
    f"!{{metric}}.matches('{PASSES}') || "
    "self.evaluation.passK.exists(k, {metric}.split('_')[2] == string(k))"
)


def _suite_has_tries(spec: "RLEvalJobSpec") -> bool:
    epochs = {suite.name: suite.epochs for suite in spec.suites}
    return all(
        int(metric.split("_")[2]) <= epochs[task]
        for metric, task in _gated_metrics(spec)
        if task in epochs and re.search(PASSES, metric)
    )


_SUITE_HAS_TRIES: Final = _of_each(
    f"{{task}} != s.name || !{{metric}}.matches('{PASSES}') || int({{metric}}.split('_')[2]) <= s.epochs"
)


def _has_turn_limit(spec: "RLEvalJobSpec") -> bool:
    suites = {suite.name for suite in spec.suites}
    tasks = [task for metric, task in _gated_metrics(spec) if metric == TURN_LIMIT]
    return not tasks or (spec.agent.is_builtin and suites.isdisjoint(tasks))


_NO_TURN_LIMIT: Final = _of_each(f"{{metric}} != '{TURN_LIMIT}'")
_NO_TURN_LIMIT_OF_S: Final = _of_each(f"{{metric}} != '{TURN_LIMIT}' || {{task}} != s.name")


def _reaches_minimum(spec: "RLEvalJobSpec") -> bool:
    gate = spec.gate
    if gate is None or gate.minimum is None or not _is_bounded(spec, gate.metric, gate.task):
        return True
    return float(gate.minimum) <= spec.reward.range[1]


def _beats_margin(spec: "RLEvalJobSpec") -> bool:
    gate, (least, greatest) = spec.gate, spec.reward.range
    if gate is None or gate.must_beat is None or not _is_bounded(spec, gate.metric, gate.task):
        return True
    return float(gate.margin) < greatest - least


def _can_fail(spec: "RLEvalJobSpec") -> bool:
    gate, (least, greatest) = spec.gate, spec.reward.range
    return gate is None or all(
        float(bound.margin) < greatest - least
        for bound in gate.no_worse
        if _is_bounded(spec, bound.metric, bound.task or gate.task)
    )


def _is_bounded(spec: "RLEvalJobSpec", metric: str, task: str) -> bool:
    """Whether spec.reward.range bounds a metric in a task. It does not bound the scores of a suite."""
    return metric == REWARD and task not in {suite.name for suite in spec.suites}


def _bounded(metric: str, task: str) -> str:
    return f"{metric} == '{REWARD}' && !(has(self.suites) && self.suites.exists(s, s.name == {task}))"


_OWN: Final = _bounded("self.gate.metric", "self.gate.task")
_BOUND: Final = _bounded("n.metric", "(has(n.task) ? n.task : self.gate.task)")
_WIDTH: Final = "self.reward.range[1] - self.reward.range[0]"


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


GATE_RULES: Final = (
    Rule(
        f"!has(self.gate) || ({_K_IS_ASKED})",
        "spec.gate: the k of a metric pass_at_k or pass_power_k must be one of spec.evaluation.passK; add it "
        "there, or name another metric",
        _k_is_asked,
        "gate",
    ),
    Rule(
        f"!has(self.gate) || !has(self.suites) || self.suites.all(s, {_SUITE_HAS_TRIES})",
        "spec.gate: the k of a suite's pass_at_k or pass_power_k must be at most its epochs (tries on a "
        "sample); raise spec.suites[].epochs, or name another metric",
        _suite_has_tries,
        "gate",
    ),
    Rule(
        f"!has(self.gate) || ({_NO_TURN_LIMIT}) || (!has(self.agent.http) && !has(self.agent.sandboxed) && "
        f"(!has(self.suites) || self.suites.all(s, {_NO_TURN_LIMIT_OF_S})))",
        "spec.gate names turn_limit. It has no value in a suite and with spec.agent.http and "
        "spec.agent.sandboxed, because their own loop decides; name another metric, or a task of spec.data",
        _has_turn_limit,
        "gate",
    ),
    Rule(
        "!has(self.gate) || !has(self.suites) || !self.suites.exists(s, s.name == self.gate.task || "
        "(has(self.gate.noWorse) && self.gate.noWorse.exists(n, has(n.task) && n.task == s.name))) || "
        "!self.candidates.exists(c, has(c.rescore) && (c.name == self.gate.candidate || "
        "(has(self.gate.mustBeat) && c.name == self.gate.mustBeat)))",
        "spec.gate compares a candidate of rescore in a suite, but rescoring samples no suites; name "
        "another candidate in spec.gate.candidate and spec.gate.mustBeat, or another task",
        _is_sampled_in_suites,
        "gate",
    ),
    Rule(
        f"!has(self.gate) || !has(self.gate.minimum) || !({_OWN}) || "
        "double(self.gate.minimum) <= self.reward.range[1]",
        "spec.gate.minimum must be at most the second number of spec.reward.range: no reward could reach it; "
        "lower the minimum, or widen the range",
        _reaches_minimum,
        "gate",
    ),
    Rule(
        f"!has(self.gate) || !has(self.gate.mustBeat) || !({_OWN}) || double(self.gate.margin) < {_WIDTH}",
        "spec.gate.margin must be below the width of spec.reward.range: no reward could beat another by "
        "more; lower the margin, or widen the range",
        _beats_margin,
        "gate",
    ),
    Rule(
        "!has(self.gate) || !has(self.gate.noWorse) || self.gate.noWorse.all(n, "
        f"!({_BOUND}) || double(n.margin) < {_WIDTH})",
        "spec.gate.noWorse[].margin must be below the width of spec.reward.range: no reward could fail the "
        "condition; lower the margin, or widen the range",
        _can_fail,
        "gate",
    ),
)
"""Rules that the whole spec must satisfy so that its gate can be judged."""


class RLEvalJobSpec(SpecModel):
    """Which models to measure, and on which rows. Immutable, except for the fields that say otherwise."""

    mutable = frozenset(
        {
            "suspend",
            "rollout",
            "budget",
            "failure_policy",
            "active_deadline_seconds",
            "pending_deadline_seconds",
            "ttl_seconds_after_finished",
        }
    )
    validations = (
        frozen_while_running("failurePolicy.maxRestarts"),
        frozen_while_running("pendingDeadlineSeconds"),
        Rule(
            "!has(self.budget) || self.budget.onExhausted != 'Drain'",
            "spec.budget.onExhausted: Drain would compare candidates on part of the rows; write Suspend or "
            "Fail",
            lambda self: self.budget is None or self.budget.on_exhausted != "Drain",
            "budget",
        ),
        EPISODE_WITHIN_SANDBOX,
        Rule(
            "!has(self.failurePolicy.rules) || "
            "!self.failurePolicy.rules.exists(r, has(r.role) && r.role == 'learner')",
            "spec.failurePolicy.rules: an evaluation has no learner; remove the rule of role learner",
            lambda self: all(rule.role != "learner" for rule in self.failure_policy.rules),
            "failurePolicy",
        ),
        Rule(
            "!has(self.output.roleSecretRefs) || !has(self.output.roleSecretRefs.learner)",
            "spec.output.roleSecretRefs.learner: an evaluation has no learner; remove it",
            lambda self: self.output.role_secret_refs is None or self.output.role_secret_refs.learner is None,
            "output",
        ),
        Rule(
            "!has(self.gate) || " + _NAMED.format("self.gate.candidate"),
            "spec.gate.candidate must be the name of a candidate",
            lambda self: self.gate is None or _named(self, self.gate.candidate),
            "gate",
        ),
        Rule(
            "!has(self.gate) || !has(self.gate.mustBeat) || " + _NAMED.format("self.gate.mustBeat"),
            "spec.gate.mustBeat must be the name of a candidate",
            lambda self: self.gate is None or _named(self, self.gate.must_beat),
            "gate",
        ),
        Rule(
            "!has(self.baseline) || " + _NAMED.format("self.baseline"),
            "spec.baseline must be the name of a candidate",
            lambda self: _named(self, self.baseline),
            "baseline",
        ),
        Rule(
            "!has(self.suites) || self.suites.all(s, self.rollout.timeoutSeconds <= "
            "s.sandbox.deadlineSeconds)",
            "spec.rollout.timeoutSeconds must not be above sandbox.deadlineSeconds of a suite: an episode "
            "ends with its sandbox; lower the first, or raise the second",
            lambda self: all(
                self.rollout.timeout_seconds <= suite.sandbox.deadline_seconds for suite in self.suites
            ),
            "suites",
        ),
        Rule(
            "!has(self.suites) || self.suites.all(s, self.suites.exists_one(t, t.name == s.name))",
            "the names of suites must differ; rename one of those that are the same",
            lambda self: len({suite.name for suite in self.suites}) == len(self.suites),
            "suites",
        ),
        Rule(
            "!has(self.suites) || self.evaluation.sampling.temperature > 0.0 || "
            "self.suites.all(s, s.epochs == 1)",
            "epochs above 1 of a suite needs spec.evaluation.sampling.temperature above 0: at 0 every try "
            "gives the same answer",
            lambda self: (
                self.evaluation.sampling.temperature > 0 or all(suite.epochs == 1 for suite in self.suites)
            ),
            "suites",
        ),
        Rule(
            "self.candidates.all(c, !(has(c.checkpoint) && c.checkpoint.withBase) || "
            f"!self.candidates.exists(d, d.name == c.name + '{BASE_SUFFIX}'))",
            "checkpoint.withBase adds a candidate whose name ends in -base; rename the candidate that "
            "already has this name",
            lambda self: len(set(self.candidate_names)) == len(self.candidate_names),
            "candidates",
        ),
        Rule(
            "self.candidates.all(c, !(has(c.checkpoint) && c.checkpoint.withBase) || "
            "self.candidates.exists_one(d, has(d.checkpoint) && d.checkpoint.withBase && "
            "d.checkpoint.job == c.checkpoint.job))",
            "two checkpoints of one job have the same base; write checkpoint.withBase on one of them",
            lambda self: _bases_differ(self.candidates),
            "candidates",
        ),
        *GATE_RULES,
    )

    suspend: bool = False
    """true stops every pod of the job until it is false again; results so far are kept. May be changed while
    the job runs."""
    seed: Annotated[int, Field(ge=0, le=2147483647)] = 0
    """Seed of every random draw. A try of a row has the same seed for each candidate."""
    candidates: Annotated[
        tuple[Candidate, ...],
        Field(min_length=1, max_length=8),
        Keyed("name"),
    ]
    """Models to measure, all on the same rows and with the same seeds."""
    baseline: Label | None = None
    """Candidate that each other candidate is compared with, by paired differences of the same row and try.
    Absent: the candidate of gate.mustBeat, otherwise the first candidate."""
    parallelism: Annotated[int, Field(ge=1, le=8)] = 1
    """Maximum sets of rollout servers that run at one time. Candidates of one base model share a set. When a
    set is done, the next one starts."""
    data: Dataset
    """The prompts to measure on."""
    agent: AgentSpec = AgentSpec()
    """Who acts in an episode."""
    environment: EnvironmentSpec
    """The environment of an episode: its tools, state, reward and external score."""
    reward: RewardSpec = RewardSpec()
    """Which rewards are valid."""
    judges: Judges = ()
    """Models that the environment's reward and score may ask. Suites have scorers of their own."""
    suites: Annotated[
        tuple[Suite, ...],
        Field(
            max_length=4,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Tasks of Inspect AI that candidates are also measured on, after the rows of data. Candidates with
    rescore are not measured on suites, because no model samples for them."""
    rollout: ServersSpec = ServersSpec()
    """How episodes are sampled. replicas counts the servers of each set."""
    evaluation: MeasureSpec = MeasureSpec()
    """What is measured on each row, and what counts as success."""
    gate: Gate | None = None
    """Conditions on the results. The job fails if they are not met."""
    budget: BudgetSpec | None = None
    """The most the job may cost (docs/budget.md). May be changed while the job runs."""
    price_book: Subdomain | None = None
    """ConfigMap of this namespace with the price book for costs, under the key prices.yaml (docs/prices.md).
    Absent: headway-prices if it exists, otherwise the built-in book. The ConfigMap's content may be changed
    while the job runs."""
    tracking: TrackingSpec = TrackingSpec()
    """Where metrics go besides Prometheus, and where traces go."""
    failure_policy: FailurePolicySpec = FailurePolicySpec()
    """What happens after failures."""
    readiness_policy: Literal["Accepted", "Running", "Succeeded"] = "Succeeded"
    """When the Ready condition is true: once the spec is accepted, once every role runs, or once the job has
    succeeded. Succeeded makes the job a gate for tools that wait for this condition."""
    active_deadline_seconds: Deadline | None = None
    """Maximum seconds that the job may take, without suspended time. After that the job fails. A job whose
    report is written has 25 minutes more to end. Absent: no limit. May be changed while the job runs."""
    pending_deadline_seconds: Deadline = 3600
    """Maximum seconds that the job waits for a candidate to exist, and for a role's pods to be ready, without
    suspended time. After that, candidates without a model or without servers fail. If pods of another role
    are not ready, the job fails. May be changed while the job is suspended."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31536000)] | None = None
    """Delete the job this many seconds after it ends. Absent: keep it. May be changed while the job runs."""
    managed_by: Annotated[str, Field(pattern=MANAGER_PATTERN, max_length=63)] | None = None
    """Controller that runs the job, as domain/name. Absent: this operator."""
    service_account_name: Subdomain | None = None
    """Service account of coordinator and rollout servers. Absent: one made for the job."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = ()
    """Secrets with which nodes pull the job's images."""
    output: OutputSpec
    """Where the results go."""

    @property
    def candidate_names(self) -> list[str]:
        """Names of all candidates in the results, in order. They include the base models that `withBase`
        adds."""
        found = []
        for candidate in self.candidates:
            found.append(candidate.name)
            if candidate.checkpoint is not None and candidate.checkpoint.with_base:
                found.append(candidate.name + BASE_SUFFIX)
        return found

    def entry_of(self, name: str) -> Candidate:
        """The spec's entry for a candidate. For a base model that `withBase` added, this is the entry of the
        tuned candidate."""
        by_name = {candidate.name: candidate for candidate in self.candidates}
        return by_name.get(name) or by_name[name.removesuffix(BASE_SUFFIX)]

    def takes_suites(self, name: str) -> bool:
        """Whether a candidate is measured on the suites. Only candidates with `rescore` are not."""
        return self.entry_of(name).rescore is None

    @property
    def opens_gateway(self) -> bool:
        """Whether agents outside the coordinator's process request their turns from the gateway."""
        return bool(self.suites) or not self.agent.is_builtin

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of one turn."""
        return self.evaluation.sampling.max_tokens or MAX_TOKENS

    @property
    def effective_baseline(self) -> str:
        """Name of the candidate that the others are compared with."""
        return self.baseline or (self.gate.must_beat if self.gate else None) or self.candidate_names[0]


class RLEvalJob(Model):
    """Several models measured on the same rows and seeds, and a gate that a promotion may wait for."""

    validations = NAME_RULES

    api_version: Literal["headway.dev/v1alpha1"] = "headway.dev/v1alpha1"
    """Version of the schema."""
    kind: Literal["RLEvalJob"] = "RLEvalJob"
    """Kind of the object."""
    metadata: Metadata
    """Standard object metadata."""
    spec: RLEvalJobSpec
    """Which models to measure, and on which rows."""
    status: RLEvalJobStatus = Field(default_factory=RLEvalJobStatus)
    """Observed state, written by the platform."""
