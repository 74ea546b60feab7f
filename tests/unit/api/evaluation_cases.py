"""Evaluations that are refused, for tests of the models and of an API server."""

from __future__ import annotations

from typing import Any

from refusal_cases import SMALLEST

from headway_api.document import Json

MODEL = {"name": "base", "model": {"base": "hf://Qwen/Qwen3-8B"}}
TUNED = {"name": "tuned", "checkpoint": {"job": "refunds", "which": "best"}}
FRONTIER = {"name": "frontier", "endpoint": {"url": "https://api.acme.dev/v1", "model": "big"}}
EVALUATION: Json = {
    "apiVersion": "headway.dev/v1alpha1",
    "kind": "RLEvalJob",
    "metadata": {"name": "compare"},
    "spec": {
        "candidates": [MODEL, TUNED, FRONTIER],
        "data": {"uri": "s3://acme-rl/test.parquet"},
        "environment": SMALLEST["spec"]["environment"],
        "evaluation": {"groupSize": 8, "passK": [1, 4, 8], "sampling": {"temperature": 1}},
        "gate": {"candidate": "tuned", "metric": "external_score", "minimum": "0.80", "mustBeat": "base"},
        "output": {"uri": "s3://acme-rl/evaluations"},
    },
}


def checkpoint(**wanted: Any) -> list[Json]:
    """The candidates, with a checkpoint changed by these fields."""
    return [MODEL, {"name": "tuned", "checkpoint": {"job": "refunds"} | wanted}]


def rescore(**wanted: Any) -> list[Json]:
    """The candidates, with a stored run to score again."""
    stored = {"name": "stored", "rescore": {"uri": "s3://acme-rl/runs/team/refunds/u"} | wanted}
    return [MODEL, TUNED, stored]


def gate(**changes: Any) -> Json:
    """A gate whose comparison is valid."""
    return {"candidate": "tuned", "mustBeat": "base"} | changes


def suite(**changes: Any) -> Json:
    """A suite: a task of Inspect AI."""
    return {"name": "sums", "image": "i", "task": "pkg/sums", "limit": 50} | changes


LIMITED = FRONTIER["endpoint"] | {
    "secretRef": {"name": "key"},
    "maxConcurrency": 4,
    "requestsPerMinute": 60,
}
EXACT = MODEL["model"] | {"revision": "v1", "dtype": "float32", "contextLength": 4096}
STORED = [*rescore(step=3), {"name": "old", "rescore": {"uri": "s3://b/r", "candidate": "base"}}]
NO_MEASURE = "the metric of a gate must be a measure with an interval that docs/evaluation.md names"
K_NOT_ASKED = "the k of a metric pass_at_k or pass_power_k must be one of spec.evaluation.passK"
K_ABOVE_EPOCHS = "the k of a suite's pass_at_k or pass_power_k must be at most its epochs"
NO_TURN_LIMIT = "spec.gate names turn_limit. It has no value in a suite and with spec.agent.http"
OWN_LOOPS = ({"http": {"url": "http://agent.test:8080"}}, {"sandboxed": {"command": ["./agent"]}})
UNREACHABLE = "spec.gate.minimum must be at most the second number of spec.reward.range"
UNBEATABLE = "spec.gate.margin must be below the width of spec.reward.range"
NEVER_WORSE = "spec.gate.noWorse[].margin must be below the width of spec.reward.range"
LOWER_IS_BETTER = "spec.gate.minimum cannot judge a measure that is better when lower"
OF_STORED = "spec.gate compares a candidate of rescore in a suite, but rescoring samples no suites"
EXACTLY_ONE = "a candidate takes exactly one of model, checkpoint, endpoint and rescore"
OF_RESCORE = "a candidate's rescore takes exactly one of candidate (of an RLEvalJob), step"
REFUSED: list[tuple[Json, str]] = [
    ({"spec.output.roleSecretRefs": {"learner": {"name": "all"}}}, "an evaluation has no learner; remove it"),
    (
        {
            "spec.failurePolicy": {
                "rules": [
                    {"action": "Ignore", "role": "learner", "onPodConditions": [{"type": "DisruptionTarget"}]}
                ]
            }
        },
        "remove the rule of role learner",
    ),
    ({"spec.candidates": [MODEL, TUNED, {"name": "none"}]}, EXACTLY_ONE),
    ({"spec.candidates": [MODEL, TUNED | {"model": MODEL["model"]}]}, EXACTLY_ONE),
    ({"spec.candidates": checkpoint(which="best", step=3)}, "takes which or step, not both"),
    ({"spec.candidates": checkpoint(uri="s3://b/w")}, "takes uri only with step"),
    ({"spec.candidates": checkpoint(which="best", uri="s3://b/w")}, "takes uri only with step"),
    (
        {"spec.candidates": checkpoint(step=3, uri="hf://a/b")},
        "the uri of a candidate's checkpoint must start with s3://",
    ),
    ({"spec.candidates": rescore()}, OF_RESCORE),
    ({"spec.candidates": rescore(candidate="base", step=3)}, OF_RESCORE),
    ({"spec.candidates": rescore(candidate="base", epoch=0)}, OF_RESCORE),
    ({"spec.candidates": rescore(step=3, epoch=0)}, OF_RESCORE),
    (
        {"spec.candidates": [*checkpoint(withBase=True), MODEL | {"name": "tuned-base"}]},
        "checkpoint.withBase adds a candidate whose name ends in -base; rename",
    ),
    (
        {
            "spec.candidates": [
                {"name": "a", "checkpoint": {"job": "refunds", "step": 1, "withBase": True}},
                {"name": "b", "checkpoint": {"job": "refunds", "withBase": True}},
            ]
        },
        "two checkpoints of one job have the same base; write checkpoint.withBase on one of them",
    ),
    (
        {"spec.candidates": [TUNED, {"name": "base", "model": {"base": "s3://b/m", "revision": "v1"}}]},
        "the revision of a candidate's model applies to hf:// models",
    ),
    (
        {"spec.candidates": [TUNED, {"name": "base", "model": {"base": "hf://a/b/c"}}]},
        "the model of a candidate: a model on the hub is hf://ORGANIZATION/NAME",
    ),
    (
        {"spec.candidates": [MODEL, TUNED, {"name": "f", "endpoint": {"url": "ftp://a/v1", "model": "m"}}]},
        "the url of a candidate's endpoint",
    ),
    ({"spec.gate": {"candidate": "tuned"}}, "spec.gate needs at least one of minimum and mustBeat"),
    (
        {"spec.gate": {"candidate": "nobody", "minimum": "0.5"}},
        "spec.gate.candidate must be the name of a candidate",
    ),
    (
        {"spec.gate": {"candidate": "tuned-base", "minimum": "0.5"}},
        "spec.gate.candidate must be the name of a candidate",
    ),
    (
        {"spec.gate": {"candidate": "tuned", "mustBeat": "nobody"}},
        "spec.gate.mustBeat must be the name of a candidate",
    ),
    ({"spec.gate": {"candidate": "tuned", "mustBeat": "tuned"}}, "must name another candidate than"),
    (
        {"spec.gate": {"candidate": "tuned", "minimum": "0.5", "noWorse": [{"metric": "success"}]}},
        "spec.gate.noWorse compares with the candidate of spec.gate.mustBeat; name it",
    ),
    *(
        ({"spec.gate": gate(metric=metric)}, NO_MEASURE)
        for metric in ("accuracy", "cost_total", "pass_at_0", "pass_at_4_by_score")
    ),
    ({"spec.gate": gate(noWorse=[{"metric": "tokens"}])}, NO_MEASURE),
    *(
        ({"spec.gate": gate(metric=metric)}, K_NOT_ASKED)
        for metric in ("pass_at_2", "pass_power_16", "pass_at_2_by_reward")
    ),
    ({"spec.gate": gate(noWorse=[{"metric": "pass_power_3"}])}, K_NOT_ASKED),
    *(
        (
            {"spec.suites": [suite(name="other-sums", epochs=8), suite(epochs=2)], "spec.gate": asked},
            K_ABOVE_EPOCHS,
        )
        for asked in (
            gate(metric="pass_at_4", task="sums"),
            gate(metric="pass_power_8_by_reward", task="sums"),
            gate(noWorse=[{"metric": "success"}, {"metric": "pass_at_4", "task": "sums"}]),
            gate(task="sums", noWorse=[{"metric": "pass_at_4"}]),
        )
    ),
    *(
        ({"spec.suites": [suite()], "spec.gate": asked}, NO_TURN_LIMIT)
        for asked in (
            gate(metric="turn_limit", task="sums"),
            gate(noWorse=[{"metric": "turn_limit", "task": "sums"}]),
            gate(task="sums", noWorse=[{"metric": "turn_limit"}]),
        )
    ),
    *(
        ({"spec.agent": agent, "spec.gate": asked}, NO_TURN_LIMIT)
        for agent in OWN_LOOPS
        for asked in (gate(metric="turn_limit"), gate(noWorse=[{"metric": "turn_limit"}]))
    ),
    *(
        (
            {"spec.gate": {"candidate": "tuned", "minimum": minimum, "metric": metric}},
            "spec.gate.minimum must be at most 1 of a metric between 0 and 1",
        )
        for minimum, metric in (
            ("5", "success"),
            ("1.01", "pass_at_4"),
            ("80", "success_by_reward"),
            ("2", "completion"),
        )
    ),
    *(
        (
            {"spec.gate": {"candidate": "tuned", "minimum": minimum, "metric": metric}},
            "spec.gate.minimum must be above 0 of a metric between 0 and 1",
        )
        for minimum, metric in (("0", "success"), ("-0.5", "pass_at_4"), ("0.0", "completion"))
    ),
    *(
        ({"spec.gate": gate(metric=metric)}, NO_MEASURE)
        for metric in ("metric_", "metric_completion", "metric_format", "tool_calls_")
    ),
    *(
        (
            {"spec.gate": gate(margin=margin, metric=metric)},
            "spec.gate.margin must be below 1 of a metric between 0 and 1",
        )
        for margin, metric in (("2", "success"), ("1", "pass_power_8"), ("1.0", "infra_error"))
    ),
    (
        {"spec.gate": gate(noWorse=[{"metric": "success"}, {"metric": "token_limit", "margin": "5"}])},
        "spec.gate.noWorse[].margin must be below 1 of a metric between 0 and 1",
    ),
    *(
        ({"spec.gate": {"candidate": "tuned", "minimum": minimum, "metric": "reward"}} | changes, UNREACHABLE)
        for minimum, changes in (
            ("5", {}),
            ("1.01", {}),
            ("2.1", {"spec.reward.range": [-1, 2]}),
            ("5", {"spec.suites": [suite()]}),
        )
    ),
    *(
        ({"spec.gate": gate(metric="reward", margin=margin)} | changes, UNBEATABLE)
        for margin, changes in (("1", {}), ("3", {"spec.reward.range": [-1, 2]}), ("7", {}))
    ),
    *(
        ({"spec.gate": gate(noWorse=[{"metric": "success"}, bound])} | changes, NEVER_WORSE)
        for bound, changes in (
            ({"metric": "reward", "margin": "1"}, {}),
            ({"metric": "reward", "margin": "3.5"}, {"spec.reward.range": [-1.5, 2]}),
            ({"metric": "reward", "margin": "2", "task": "order"}, {"spec.suites": [suite()]}),
        )
    ),
    *(
        ({"spec.gate": {"candidate": "tuned", "minimum": "5", "metric": metric}}, LOWER_IS_BETTER)
        for metric in ("turns", "cost", "tool_calls_search")
    ),
    *(
        ({"spec.candidates": STORED, "spec.suites": [suite()], "spec.gate": asked}, OF_STORED)
        for asked in (
            {"candidate": "stored", "minimum": "0.5", "task": "sums"},
            gate(mustBeat="stored", task="sums"),
            gate(candidate="stored", noWorse=[{"metric": "success", "task": "sums"}]),
        )
    ),
    *(
        (
            {"spec.gate": gate(margin=margin)},
            "spec.gate.margin must be at least 0; to allow a loss, use spec.gate.noWorse",
        )
        for margin in ("-0.5", "-0")
    ),
    *(
        (
            {"spec.gate": gate(maxLost=share)},
            "spec.gate.maxLost is a share: write a number from 0 to 1",
        )
        for share in ("1.01", "5", "-0.1", "00.5", "1.00000000000000000000001")
    ),
    (
        {"spec.gate": gate(noWorse=[{"metric": "success", "margin": "-0.1"}])},
        "spec.gate.noWorse[].margin must be at least 0; to ask for a gain, use spec.gate.mustBeat",
    ),
    ({"spec.baseline": "nobody"}, "spec.baseline must be the name of a candidate"),
    ({"spec.rollout": {"timeoutSeconds": 901}}, "must not be above spec.environment.sandbox.deadlineSeconds"),
    (
        {"spec.evaluation.passK": [16]},
        "spec.evaluation.passK: no value may be above spec.evaluation.groupSize",
    ),
    ({"spec.suites": [suite(name="all")]}, "the name of a suite must not be all or other"),
    ({"spec.suites": [suite(), suite(limit=3)]}, "the names of suites must differ"),
    (
        {"spec.suites": [suite(epochs=2)], "spec.evaluation": {}},
        "epochs above 1 of a suite needs spec.evaluation.sampling.temperature above 0",
    ),
    (
        {"spec.suites": [suite(sandbox={"deadlineSeconds": 30})]},
        "spec.rollout.timeoutSeconds must not be above sandbox.deadlineSeconds of a suite",
    ),
    ({"spec.budget": {}}, "spec.budget has no limit; write usd, tokens, or both"),
    ({"spec.budget": {"usd": "10", "onExhausted": "Drain"}}, "spec.budget.onExhausted: Drain would compare"),
    ({"spec.budget": {"tokens": {}}}, "spec.budget.tokens names no class"),
]
"""The fields that are set -> a part of the refusal."""

TAKEN: list[Json] = [
    {"spec.gate": gate(metric="metric_" + 64 * "f", noWorse=[{"metric": "tool_calls_" + 64 * "t"}])},
    {},
    {"spec.gate": None},
    {
        "spec.candidates": checkpoint(withBase=True),
        "spec.gate": {"candidate": "tuned", "mustBeat": "tuned-base"},
    },
    {"spec.candidates": checkpoint(step=3)},
    {"spec.candidates": checkpoint(step=3, uri="s3://b/r/weights/000003")},
    {"spec.candidates": rescore(step=3)},
    {"spec.candidates": rescore(epoch=0)},
    {"spec.baseline": "frontier"},
    {"spec.candidates": [MODEL | {"model": EXACT}, TUNED, FRONTIER | {"endpoint": LIMITED}]},
    {"spec.gate": gate(minimum="0.5", minimumOf="Value")},
    {
        "spec.suites": [suite(epochs=2, args={"hard": True}), suite(name="facts", task="a/b.py@facts")],
        "spec.gate": {
            "candidate": "tuned",
            "mustBeat": "base",
            "noWorse": [{"metric": "metric_match", "task": "sums", "margin": "0.02"}],
        },
    },
    {"spec.suites": [suite()], "spec.gate": {"candidate": "tuned", "minimum": "0.5", "task": "sums"}},
    {"spec.gate": gate(maxLost="0")},
    {"spec.gate": gate(maxLost="1.0")},
    {"spec.gate": {"candidate": "tuned", "minimum": "1", "metric": "success"}},
    {"spec.gate": {"candidate": "tuned", "minimum": "5", "metric": "external_score"}},
    {"spec.gate": {"candidate": "tuned", "minimum": "1", "metric": "reward"}},
    {
        "spec.gate": gate(metric="reward", margin="4.9", noWorse=[{"metric": "reward", "margin": "4.99"}]),
        "spec.reward.range": [-2.5, 2.5],
    },
    {
        "spec.suites": [suite()],
        "spec.gate": gate(
            metric="reward",
            minimum="5",
            margin="5",
            task="sums",
            noWorse=[{"metric": "reward", "margin": "5"}],
        ),
    },
    {"spec.gate": gate(metric="metric_points", margin="2", noWorse=[{"metric": "turns", "margin": "1.5"}])},
    {
        "spec.gate": gate(
            metric="success", margin="0.99", noWorse=[{"metric": "turn_limit", "margin": "0.99"}]
        )
    },
    {
        "spec.suites": [suite(epochs=4), suite(name="facts")],
        "spec.gate": gate(
            metric="pass_at_4",
            task="sums",
            noWorse=[{"metric": "pass_power_8", "task": "all"}, {"metric": "pass_at_1", "task": "facts"}],
        ),
    },
    {"spec.suites": [suite()], "spec.gate": gate(noWorse=[{"metric": "turn_limit"}])},
    *({"spec.agent": agent, "spec.gate": gate(metric="token_limit")} for agent in OWN_LOOPS),
    {"spec.gate": gate(margin="0", noWorse=[{"metric": "success", "margin": "0.0"}])},
    *(
        {"spec.gate": gate(metric=metric)}
        for metric in ("metric_accuracy", "tool_calls_search", "pass_at_4", "pass_power_8_by_reward", "cost")
    ),
    {
        "spec.candidates": STORED,
        "spec.suites": [suite()],
        "spec.gate": gate(candidate="stored", mustBeat="old", metric="reward"),
    },
    {
        "spec.candidates": STORED,
        "spec.suites": [suite()],
        "spec.gate": gate(noWorse=[{"metric": "success", "task": "sums"}]),
    },
]
"""Fields that are set and accepted."""

CHANGES: list[tuple[Json, str | None]] = [
    ({"spec.candidates": [MODEL, TUNED]}, "spec.candidates is immutable"),
    ({"spec.gate.minimum": "0.5"}, "spec.gate is immutable"),
    ({"spec.gate": None}, "spec.gate is immutable"),
    ({"spec.suites": [suite()]}, "spec.suites is immutable"),
    ({"spec.data.uri": "s3://acme-rl/other.parquet"}, "spec.data is immutable"),
    ({"spec.evaluation.maxRows": 10}, "spec.evaluation is immutable"),
    ({"spec.parallelism": 2}, "spec.parallelism is immutable"),
    ({"spec.readinessPolicy": "Running"}, "spec.readinessPolicy is immutable"),
    (
        {"spec.pendingDeadlineSeconds": 60},
        "spec.pendingDeadlineSeconds may change only while the job is suspended",
    ),
    ({"spec.suspend": True, "spec.pendingDeadlineSeconds": 60}, None),
    ({"spec.rollout": {"replicas": 3}}, None),
    ({"spec.activeDeadlineSeconds": 60}, None),
    ({"spec.ttlSecondsAfterFinished": 60}, None),
]
"""A change of a running job -> a part of the refusal, or None if the change is allowed."""
