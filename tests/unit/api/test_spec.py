"""The models accept what a user should write, and refuse the rest with a message that says what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest
from evaluation_cases import CHANGES, EVALUATION, TAKEN
from evaluation_cases import REFUSED as EVALUATIONS_REFUSED
from generated_specs import nodes, values
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from refusal_cases import EVERYTHING, SMALLEST, TABLE, changed, title

from headway_api.crd import definitions
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.model import Lora
from headway_api.spec.training import RLTrainingJob


def job(changes: dict[str, Any]) -> RLTrainingJob:
    return RLTrainingJob.model_validate(changed(SMALLEST, changes))


def fields(error: ValidationError) -> list[str]:
    """Every field that the error names, without list indices."""
    return [".".join(part for part in entry["loc"] if isinstance(part, str)) for entry in error.errors()]


@pytest.mark.parametrize("example", [SMALLEST, EVERYTHING], ids=["smallest", "everything"])
def test_the_models_accept_the_examples(example: dict[str, Any]) -> None:
    RLTrainingJob.model_validate(example)


def test_the_models_keep_every_given_field() -> None:
    spec = RLTrainingJob.model_validate(EVERYTHING).spec
    assert RLTrainingJob.model_validate({**SMALLEST, "spec": spec.as_object()}).spec == spec
    assert spec.environment.config == EVERYTHING["spec"]["environment"]["config"]
    assert spec.rollout.resources is not None
    assert spec.rollout.resources.limits == {"nvidia.com/gpu": "2"}


def judged(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases that the models judge too."""
    return [case for case in cases if case.get("models") != "lenient"]


@pytest.mark.parametrize("case", judged(TABLE["messages"]), ids=title)
def test_the_models_refuse_with_a_message(case: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        job(case["set"])
    assert case["says"] in str(refused.value)


@pytest.mark.parametrize("case", judged(TABLE["bounds"]), ids=title)
def test_the_models_refuse_a_value_out_of_bounds(case: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        job(case["set"])
    assert case["field"] in fields(refused.value)


@pytest.mark.parametrize("case", [*TABLE["transitions"], *TABLE["allowed"]], ids=title)
def test_both_ends_of_a_change_are_valid(case: dict[str, Any]) -> None:
    before = changed(SMALLEST, case.get("from", {}))
    RLTrainingJob.model_validate(before)
    RLTrainingJob.model_validate(changed(before, case["set"]))


def test_a_null_is_an_absent_field() -> None:
    nulls = {"seed": None, "judges": None, "algorithm": {"batchSize": None}, "budget": None}
    given = {**SMALLEST, "spec": SMALLEST["spec"] | nulls}
    assert RLTrainingJob.model_validate(given).spec == RLTrainingJob.model_validate(SMALLEST).spec


@pytest.mark.parametrize("name", ["model", "unknown"])
def test_a_null_is_refused_in_every_field(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RLTrainingJob.model_validate({**SMALLEST, "spec": SMALLEST["spec"] | {name: None}})
    assert fields(refused.value) == [f"spec.{name}"]


def test_candidates_of_one_name_are_named() -> None:
    same = [{"name": "base", "model": {"base": f"hf://acme/{name}"}} for name in "ab"]
    with pytest.raises(ValidationError, match="two items have the name 'base'; change one of them"):
        RLEvalJob.model_validate(changed(EVALUATION, {"spec.candidates": same, "spec.gate": None}))


def test_unknown_fields_are_named() -> None:
    with pytest.raises(ValidationError) as refused:
        job({"spec.algorithm": {"batch": 3}})
    assert fields(refused.value) == ["spec.algorithm.batch"]


@given(st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_numbers_are_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        job({"spec.optimizer": {"learningRate": value}})


def test_an_adapter_is_trained_by_default() -> None:
    assert job({}).spec.model.effective_lora == Lora(rank=32, alpha=64)
    assert job({"spec.model.lora": {"rank": 8}}).spec.model.effective_lora == Lora(rank=8, alpha=64)
    assert job({"spec.model.full": {}}).spec.model.effective_lora is None


def test_default_clip_bounds_follow_the_loss() -> None:
    def bounds(algorithm: dict[str, Any]) -> tuple[float, float] | None:
        clip = job({"spec.algorithm": algorithm}).spec.algorithm.effective_clip
        return (clip.low, clip.high) if clip else None

    assert bounds({}) == (0.8, 1.2)
    assert bounds({"loss": "cispo"}) == (0.0, 6.0)
    assert bounds({"loss": "cispo", "clip": {"low": 1, "high": 4}}) == (0.0, 4.0)
    assert bounds({"loss": "cispo", "clip": {"high": 4}}) == (0.0, 4.0)
    assert bounds({"loss": "importance_sampling"}) is None
    assert bounds({"clip": {"low": 0.5, "high": 2}}) == (0.5, 2)


def test_validation_samples_as_many_tokens_as_training() -> None:
    spec = job({"spec.rollout": {"sampling": {"maxTokens": 64}}}).spec
    assert spec.evaluation_max_tokens == 64
    spec = job({"spec.evaluation": {"sampling": {"maxTokens": 32}}}).spec
    assert spec.evaluation_max_tokens == 32


def test_a_custom_agent_reports_a_reward_and_gets_two_minutes() -> None:
    http = job({"spec.agent.http": {"service": {"name": "agent", "port": 80}}}).spec.agent.http
    assert http is not None
    assert (http.idle_seconds, http.reports_reward, http.callback_url) == (120, True, None)


def test_only_the_platforms_loop_plans_for_turns() -> None:
    def planned(agent: dict[str, Any]) -> tuple[bool, int]:
        made = job({"spec.agent": agent}).spec.agent
        return made.is_builtin, made.planned_turns

    assert planned({}) == (True, 16)
    assert planned({"builtin": {"maxTurns": 3}}) == (True, 3)
    assert planned({"http": {"url": "https://agent"}}) == (False, 1)
    assert planned({"sandboxed": {"command": ["agent"]}}) == (False, 1)


def test_the_data_format_follows_the_file_ending() -> None:
    assert job({}).spec.data.train.effective_format == "parquet"
    named = job({"spec.data.train.uri": "s3://b/k.csv", "spec.data.train.format": "jsonl"})
    assert named.spec.data.train.effective_format == "jsonl"


def test_spec_is_frozen() -> None:
    with pytest.raises(ValidationError):
        job({}).spec.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("changes", TAKEN, ids=str)
def test_an_evaluation_is_accepted(changes: dict[str, Any]) -> None:
    made = RLEvalJob.model_validate(changed(EVALUATION, changes))
    assert made.spec.readiness_policy == "Succeeded"


@pytest.mark.parametrize(("changes", "says"), EVALUATIONS_REFUSED)
def test_a_wrong_evaluation_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        RLEvalJob.model_validate(changed(EVALUATION, changes))


def unwritten(kind: str, examples: list[dict[str, Any]], *below: str) -> list[str]:
    """Fields below some paths that no example of a kind sets."""
    [definition] = [each for each in definitions() if each["spec"]["names"]["kind"] == kind]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    written = {path for example in examples for path, _ in values(example)}
    return [path for path, _ in nodes(schema) if path.startswith(below) and path not in written]


def test_every_field_of_a_training_job_is_in_a_case() -> None:
    cases = [case.get("from", {}) | case["set"] for table in TABLE.values() for case in table]
    found = unwritten("RLTrainingJob", [EVERYTHING, *(changed(SMALLEST, case) for case in cases)], "spec.")
    assert found == [], (
        "write each into tests/unit/api/everything.yaml, or into a case of tests/unit/api/refusals.yaml"
    )


def test_every_field_of_candidates_and_gate_is_in_a_case() -> None:
    cases = [*TAKEN, *(changes for changes, _ in [*EVALUATIONS_REFUSED, *CHANGES])]
    examples = [changed(EVALUATION, changes) for changes in cases]
    assert unwritten("RLEvalJob", examples, "spec.candidates", "spec.gate") == [], (
        "write each into a case of TAKEN or REFUSED in tests/unit/api/evaluation_cases.py"
    )
