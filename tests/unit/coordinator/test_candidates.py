"""What the servers hold for a candidate, and what is said of weights that cannot be had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import huggingface_hub
import pytest
from a_job import manifest as published
from a_job import report
from an_evaluation import EvalJob, spec
from huggingface_hub.errors import LocalEntryNotFoundError
from toy_tokenizer import tokenizer

from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.sandbox_api import ResetReply
from headway_api.status import ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator.evaluation import units
from headway_coordinator.evaluation.candidates import manifest, readable
from headway_coordinator.faults import CandidateFault


def trained(layout: Layout, kind: str, step: int = 7) -> ResolvedCandidate:
    return ResolvedCandidate.model_validate(
        {"name": "tuned", "kind": kind, "base": "s3://b/m", "dtype": "float32", "job": "refunds",
         "step": step, "uri": layout.weights(step), "serverSet": 0}
    )  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A training job that keeps the weights of step 7."""
    layout, store = Layout(f"file://{tmp_path}", "ns", "job", "uid"), FileStore()
    store.put(layout.step_history(7), report(7).model_dump_json().encode())
    store.put(f"{layout.weights(7)}/adapter_model.safetensors", b"weights")
    return layout


def test_a_model_as_it_comes_is_what_the_servers_loaded() -> None:
    model = ResolvedCandidate(name="base", kind="Model", base="hf://org/name", dtype="bfloat16", server_set=0)
    found = manifest(model, FileStore())
    assert (found.kind, found.uri, found.canary) == ("base", "hf://org/name", None)


def test_an_adapter_is_what_its_learner_published(layout: Layout) -> None:
    assert manifest(trained(layout, "Adapter"), FileStore()) == published(7)


def test_all_weights_are_proven_by_the_learners_own_log_probabilities(layout: Layout) -> None:
    found = manifest(trained(layout, "Weights"), FileStore())
    assert found.kind == "base"
    assert found.canary == published(7).canary


@pytest.mark.parametrize("step", [7, 8])
def test_weights_that_are_not_kept_name_the_field_and_the_fix(layout: Layout, step: int) -> None:
    store = FileStore()
    store.delete([f"{layout.weights(7)}/adapter_model.safetensors"])
    with pytest.raises(CandidateFault, match=f"refunds keeps no weights of step {step}") as raised:
        manifest(trained(layout, "Adapter", step), store)
    assert raised.value.field == "spec.candidates[tuned].checkpoint"
    assert "spec.candidates[tuned].checkpoint.step a validated step" in str(raised.value)
    assert "raise spec.checkpoints.keepLast of that job" in str(raised.value)
    assert raised.value.reason == "CheckpointMissing"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("plain", "spec.candidates[plain].model.base"),
        ("tuned", "spec.candidates[tuned].checkpoint.job"),
        ("tuned-base", "spec.candidates[tuned].checkpoint.job"),
    ],
)
def test_a_fault_of_a_model_names_a_field_that_the_spec_has(tmp_path: Path, name: str, field: str) -> None:
    of = spec(
        candidates=[
            {"name": "plain", "model": {"base": f"file://{tmp_path}"}},
            {"name": "tuned", "checkpoint": {"job": "refunds", "withBase": True}},
        ]
    )
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    resolved = ResolvedCandidate.model_validate(
        {"name": name, "kind": "Model", "base": f"file://{tmp_path}", "dtype": "float32", "serverSet": 0}
    )
    first = ResetReply(messages=[{"role": "user", "content": "Hello"}], tools=[])
    with pytest.raises(CandidateFault) as raised:
        readable(resolved, of, first, FileStore(), tmp_path / "cache")
    assert (raised.value.reason, raised.value.field) == ("TokenizerUnusable", field)


@pytest.mark.parametrize("family", ["", "qwen3"])
@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('System role not supported') }}",
        "{% for message in %}",
        "{{ messages[0].nothing.at_all }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_takes_no_such_prompt_names_the_field(
    tmp_path: Path, template: str, family: str
) -> None:
    """Templates raise what their authors like; the other candidates go on."""
    base = tmp_path / "model"
    tokenizer(base, template).save_pretrained(base)
    (base / "config.json").write_text(
        json.dumps({"max_position_embeddings": 512} | ({"model_type": family} if family else {}))
    )
    of = spec(candidates=[{"name": "plain", "model": {"base": f"file://{base}"}}])
    resolved = ResolvedCandidate.model_validate(
        {"name": "plain", "kind": "Model", "base": f"file://{base}", "dtype": "float32", "serverSet": 0}
    )
    first = ResetReply(messages=[{"role": "system", "content": "Be brief."}], tools=[])
    with pytest.raises(CandidateFault, match="chat template does not take how an episode begins") as raised:
        readable(resolved, of, first, FileStore(), tmp_path / "cache")
    assert raised.value.reason == "ChatTemplateUnusable"
    assert raised.value.field == "spec.candidates[plain].model.base"


async def test_a_hub_that_does_not_answer_ends_its_candidate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise LocalEntryNotFoundError("Connection refused")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", away)
    monkeypatch.setattr(units, "AGAIN_SECONDS", 0.01)
    asked = [
        {"name": "far", "model": {"base": "hf://acme/open"}},
        {"name": "other", "model": {"base": "s3://b/m"}},
    ]
    job = EvalJob(tmp_path, spec(candidates=asked, pendingDeadlineSeconds=1))
    evaluation, no = await job.coordinator(), cast(Any, None)
    far = ResolvedCandidate.model_validate(
        {"name": "far", "kind": "Model", "base": "hf://acme/open", "dtype": "float32", "serverSet": 0}
    )
    of = EvalConfig(name="job", namespace="ns", uid="uid", spec=job.spec, candidates=(far,))
    made = units.Units(of, evaluation.state, no, "key", job.store, tmp_path, no, no, no, no, no)
    await evaluation.run([*made.all(), job.unit("other")])
    stages = {name: (each.stage, each.reason) for name, each in evaluation.state.candidates.items()}
    assert stages == {"far": ("Failed", "ModelNotFetched"), "other": ("Complete", None)}
    message = evaluation.state.candidates["far"].message
    assert message is not None
    assert message.startswith("spec.candidates[far].model.base: acme/open could not be fetched")


@pytest.mark.parametrize(
    ("bases", "models"),
    [
        (["hf://a/one", "hf://a/one"], {"one": None, "far": "gpt-x"}),
        (["hf://a/one", "hf://a/two"], {"one": "hf://a/one", "two": "hf://a/two", "far": "gpt-x"}),
    ],
)
async def test_a_unit_names_the_model_whose_prices_hold(
    tmp_path: Path, bases: list[str], models: dict[str, str | None]
) -> None:
    asked: list[dict[str, Any]] = [
        {"name": name, "model": {"base": base}} for name, base in zip(("one", "two"), bases, strict=True)
    ]
    asked.append({"name": "far", "endpoint": {"url": "https://api.example.com/v1", "model": "gpt-x"}})
    job = EvalJob(tmp_path, spec(candidates=asked))
    evaluation, no = await job.coordinator(), cast(Any, None)
    sets = {base: number for number, base in enumerate(dict.fromkeys(bases))}
    resolved = [
        ResolvedCandidate.model_validate(
            {"name": name, "kind": "Model", "base": base, "dtype": "float32", "serverSet": sets[base]}
        )
        for name, base in zip(("one", "two"), bases, strict=True)
    ]
    far = ResolvedCandidate(name="far", kind="Endpoint")
    of = EvalConfig(name="job", namespace="ns", uid="uid", spec=job.spec, candidates=(*resolved, far))
    made = units.Units(of, evaluation.state, no, "key", job.store, tmp_path, no, no, no, no, no)
    assert {unit.candidates[0]: unit.model for unit in made.all()} == models
