"""The operator's metrics exist, have the names that the contracts declare, and are served."""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_stages import ended_pause, paused, pausing
from observed_cluster import eval_job, job, running
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headway_api import names
from headway_api.document import Json
from headway_api.metrics import JOBS, OF_JOB, OPERATOR, SHARED_BUDGETS, prometheus_name
from headway_api.signals import SignalName
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_operator.cache import Cache
from headway_operator.samples import samples
from headway_operator.telemetry import ERRORS, Telemetry, serve

THEN = "2026-11-01T12:00:00Z"
THEN_S = 1793534400.0


def condition(kind: str, status: str, reason: str) -> Json:
    """A condition as it is stored."""
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": THEN}


TRAINING: Json = {
    "state": "Training",
    "reason": "Stepping",
    "startTime": THEN,
    "completionTime": THEN,
    "conditions": [
        condition("Progressing", "True", "Stepping"),
        condition("Healthy", "False", "RewardCollapsed"),
    ],
    "algorithm": {"loss": "cispo"},
    "progress": {"step": 12, "maxSteps": 120, "episodes": 768, "updatedTime": THEN},
    "reward": {"mean": "0.42"},
    "validation": {
        "step": 10,
        "externalScore": "0.31",
        "baselineExternalScore": "0.2",
        "best": {"step": 5, "externalScore": "0.35"},
    },
    "usage": {"cost": "12.5"},
    "signals": [
        {"name": "RewardCollapsed", "state": "Raised", "since": 11},
        {"name": "EntropyFalling", "state": "Suspect", "since": 9},
        {"name": "RewardFlat", "state": "Clear", "since": 3},
        {"name": "Repetition", "state": "Unknown"},
    ],
    "roles": [{"name": "learner", "desired": 2, "ready": 1, "restarts": 3}],
}
PAUSE: Json = {"signal": "NothingToTrain", "step": 12, "time": THEN}
EVALUATION: Json = {
    "state": "Evaluating",
    "candidates": [{"name": "base", "kind": "Model", "base": "hf://Qwen/Qwen3-8B"}],
    "progress": {"groups": 30, "ofGroups": 64, "updatedTime": THEN},
    "results": [{"name": "base", "externalScore": {"value": "0.81"}}, {"name": "tuned"}],
}


def served(*bodies: Json, telemetry: Telemetry | None = None) -> dict[str, float]:
    """Samples of the jobs as in a scrape, keyed without the labels that name the job."""
    telemetry, cache = telemetry or Telemetry(), Cache()
    for body in bodies:
        cache.put(body)
    telemetry.count_jobs(cache)
    return scraped(telemetry)


def scraped(telemetry: Telemetry) -> dict[str, float]:
    found = {}
    for metric in text_string_to_metric_families(generate_latest(telemetry.registry).decode()):
        for sample in metric.samples:
            if sample.name.startswith("headway_job_"):
                assert {sample.labels.pop(label) for label in OF_JOB} >= {"team", "refunds"}
                more = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                name = sample.name.removeprefix("headway_job_")
                found[f"{name}{{{more}}}" if more else name] = sample.value
    return found


def test_every_family_of_the_operator_is_reported_under_its_name() -> None:
    telemetry = Telemetry()
    cache = Cache()
    cache.put(job(status=TRAINING))
    cache.put(eval_job(status=EVALUATION))
    cache.put(shared_budget())
    telemetry.count_jobs(cache)
    telemetry.reconciled(0.1, "success")
    telemetry.reconciled(0.1, "ApiError")
    telemetry.applied("Job", "created")
    text = generate_latest(telemetry.registry).decode()
    for family in (*OPERATOR, *JOBS):
        assert f"\n{prometheus_name(family.name)}" in text or text.startswith(prometheus_name(family.name))
    for family in (*JOBS, *SHARED_BUDGETS):
        assert f"\n{prometheus_name(family.name)}{{" in text
    assert 'headway_namespace_budget_limit{limit="usd",namespace="team"} 500.0' in text
    assert 'headway_namespace_budget_exhausted{namespace="team"} 1.0' in text
    assert 'headway_operator_jobs{kind="RLTrainingJob",namespace="team",state="Training"} 1.0' in text
    assert 'headway_operator_jobs{kind="RLEvalJob",namespace="team",state="Evaluating"} 1.0' in text
    assert 'headway_operator_reconcile_errors_total{reason="ApiError"} 1.0' in text


def shared_budget() -> Json:
    limit = {"name": "usd", "limit": "500", "spent": "12.5", "granted": "9", "ended": "4", "left": "x"}
    conditions = [{"type": kind, "status": "True"} for kind in ("BudgetLow", "BudgetExhausted", "Ready")]
    return {
        "kind": names.BUDGET_KIND,
        "metadata": {"name": "default", "namespace": "team", "uid": "b", "resourceVersion": "1"},
        "spec": {"usd": "500"},
        "status": {
            "limits": [limit, limit | {"name": "tokens.train", "left": "7"}],
            "conditions": conditions,
        },
    }


@pytest.mark.parametrize("reason", ERRORS)
def test_errors_count_from_zero_before_the_first_one(reason: str) -> None:
    text = generate_latest(Telemetry().registry).decode()
    assert f'headway_operator_reconcile_errors_total{{reason="{reason}"}} 0.0' in text


def test_each_metric_of_a_job_is_explained() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
    table = text.partition("## Metrics of a job")[2].partition("\n## ")[0]
    for family in JOBS:
        name = prometheus_name(family.name).removeprefix("headway_job_").removesuffix("timestamp_seconds")
        assert f"_{name}" in table, family.name


def test_the_statuses_of_these_tests_are_valid() -> None:
    RLTrainingJobStatus.model_validate(TRAINING | {"pause": PAUSE})
    RLEvalJobStatus.model_validate(EVALUATION)


def test_metrics_of_a_training_job_come_from_its_status() -> None:
    model = "base_model=hf://Qwen/Qwen3-8B,loss=cispo,manager=headway.dev/operator"
    assert served(job(status=TRAINING)) == {
        f"info{{{model},reason=Stepping,state=Training}}": 1,
        "active": 1,
        "condition{reason=Stepping,status=True,type=Progressing}": 1,
        "condition{reason=RewardCollapsed,status=False,type=Healthy}": 1,
        "signal{signal=RewardCollapsed}": 2,
        "signal{signal=EntropyFalling}": 1,
        "signal{signal=RewardFlat}": 0,
        "step": 12,
        "max_steps": 120,
        "episodes": 768,
        "reward": 0.42,
        "external_score": 0.31,
        "best_external_score": 0.35,
        "baseline_external_score": 0.2,
        "cost": 12.5,
        "restarts_total{role=learner}": 3,
        "pods_desired{role=learner}": 2,
        "pods_ready{role=learner}": 1,
        "created_timestamp_seconds": THEN_S,
        "started_timestamp_seconds": THEN_S,
        "updated_timestamp_seconds": THEN_S,
        "completed_timestamp_seconds": THEN_S,
    }


def test_metrics_of_an_evaluation_come_from_its_status() -> None:
    assert served(eval_job(status=EVALUATION)) == {
        "info{base_model=hf://Qwen/Qwen3-8B,loss=,manager=headway.dev/operator,reason=,state=Evaluating}": 1,
        "active": 1,
        "groups": 30,
        "max_groups": 64,
        "candidate_external_score{candidate=base}": 0.81,
        "created_timestamp_seconds": THEN_S,
        "updated_timestamp_seconds": THEN_S,
    }


def test_the_metrics_of_a_new_job_show_its_spec() -> None:
    found = served(job(algorithm={"loss": "ppo"}))
    info = "base_model=hf://Qwen/Qwen3-8B,loss=ppo,manager=headway.dev/operator,reason=,state=Pending"
    assert found == {f"info{{{info}}}": 1, "active": 1, "created_timestamp_seconds": THEN_S}


def test_candidates_of_several_models_have_an_empty_base_model() -> None:
    two = [*EVALUATION["candidates"], {"name": "other", "kind": "Model", "base": "hf://Qwen/Qwen3-4B"}]
    assert any("base_model=," in name for name in served(eval_job(status=EVALUATION | {"candidates": two})))


def test_each_signal_has_its_state() -> None:
    known = [{"name": name, "state": "Raised"} for name in list(SignalName)[:16]]
    found = served(job(status={"signals": known}))
    assert {name: found.get(f"signal{{signal={name}}}") for name in list(SignalName)[:16]} == dict.fromkeys(
        list(SignalName)[:16], 2
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"status": {"conditions": [condition("Complete", "True", "MaxStepsReached")]}},
        {"status": {"conditions": [condition("Failed", "True", "CrashLoop")]}},
        {"spec": {"suspend": True}},
        {"metadata": {"deletionTimestamp": THEN}},
        {"status": {"pause": PAUSE}},
        {"status": {"pause": PAUSE, "resumedPause": "2026-10-31T08:00:00Z"}},
    ],
    ids=["complete", "failed", "suspended", "deleted", "paused", "paused once more"],
)
def test_a_job_that_must_not_run_is_not_active(changed: Json) -> None:
    body = job()
    for part, fields in changed.items():
        body[part] |= fields
    assert served(body)["active"] == 0


def test_a_job_whose_pause_a_person_has_ended_is_active() -> None:
    assert served(job(status={"pause": PAUSE, "resumedPause": "2026-11-01T13:00:00+01:00"}))["active"] == 1


def test_a_job_counts_as_paused_while_the_operator_holds_it() -> None:
    world = running()
    assert served(world.body)["active"] == 1
    assert served(pausing(world).body)["active"] == 0, "its pods still stop"
    assert served(paused(world).body)["active"] == 0
    assert served(ended_pause(world).body)["active"] == 1


def test_a_job_that_is_gone_has_no_metrics() -> None:
    telemetry, cache = Telemetry(), Cache()
    body = job(status=TRAINING)
    cache.put(body)
    telemetry.count_jobs(cache)
    assert scraped(telemetry)
    cache.remove(body)
    assert scraped(telemetry) == {}


def test_jobs_of_another_manager_are_left_to_it() -> None:
    text = generate_latest(_telemetry_of(job(managedBy="example.com/other", status=TRAINING)).registry)
    assert b"headway_job_info{" not in text
    assert b"headway_operator_jobs{" not in text


def test_a_replica_that_leads_no_more_says_nothing_of_jobs() -> None:
    telemetry = _telemetry_of(job(status=TRAINING))
    telemetry.leader.set(1)
    telemetry.retire()
    text = generate_latest(telemetry.registry)
    assert b"headway_job_info{" not in text
    assert b"headway_operator_leader 0.0" in text


def _telemetry_of(body: Json) -> Telemetry:
    telemetry, cache = Telemetry(), Cache()
    cache.put(body)
    telemetry.count_jobs(cache)
    return telemetry


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ({"progress": {"step": "many", "maxSteps": 120}}, {"step"}),
        ({"progress": {"step": 12, "updatedTime": "soon"}}, {"updated_timestamp_seconds"}),
        ({"reward": {"mean": "NaN"}}, {"reward"}),
        ({"reward": {"mean": "1e999"}}, {"reward"}),
        ({"reward": ["0.4"]}, {"reward"}),
        ({"usage": {"cost": True}}, {"cost"}),
        ({"usage": None}, {"cost"}),
        ({"validation": {"externalScore": None}}, {"external_score"}),
        ({"startTime": 12, "completionTime": "2026"}, {"started_timestamp_seconds"}),
        ({"signals": ["RewardCollapsed", {"name": "Repetition", "state": ["Raised"]}]}, {"signal"}),
        ({"roles": [{"name": "learner", "restarts": None}]}, {"restarts_total"}),
        ({"conditions": {"type": "Failed"}}, {"condition"}),
        ({"pause": {"time": "noon"}, "resumedPause": 12}, set()),
        ({"pause": THEN}, set()),
    ],
)  # fmt: skip
def test_a_broken_field_costs_its_own_samples_only(broken: Json, lost: set[str]) -> None:
    found = served(job(status=TRAINING | broken))
    assert not [name for name in found if name.partition("{")[0] in lost]
    assert found["active"] == 1
    assert any(name.startswith("info{") for name in found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*TRAINING, *EVALUATION, "pause", "resumedPause"})


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.booleans())
def test_no_status_breaks_a_scrape(status: Json, trains: bool) -> None:
    body = (job if trains else eval_job)(status=status)
    assert all(math.isfinite(sample.value) for sample in samples(body))
    assert b"headway_job_info{" in generate_latest(_telemetry_of(body).registry)


@given(st.dictionaries(st.sampled_from(["conditions", "signals", "roles", "results", "candidates"]), st.lists(
    st.dictionaries(st.sampled_from(["name", "type", "status", "state", "reason", "restarts", "base"]), JSON)
)))  # fmt: skip
def test_a_scrape_tolerates_any_item_of_a_list(status: Json) -> None:
    for body in (job(status=status), eval_job(status=status)):
        text = generate_latest(_telemetry_of(body).registry).decode()
        seen = [line.rpartition(" ")[0] for line in text.splitlines() if line.startswith("headway_job_")]
        assert len(seen) == len(set(seen)), "Prometheus takes each series once"


def test_probes_report_what_is_wrong() -> None:
    wrong = "no watch has received anything from the API server"
    server = serve(0, Telemetry(), lambda: wrong, lambda: "")
    base = f"http://127.0.0.1:{server.server_address[1]}"
    with urllib.request.urlopen(f"{base}/readyz", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{base}/healthz", timeout=10)
    assert (refused.value.code, refused.value.read().decode()) == (503, wrong)
    server.shutdown()
