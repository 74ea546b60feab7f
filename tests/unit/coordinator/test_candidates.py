"""What the servers hold for a candidate, and how it fails if its weights are unavailable."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import huggingface_hub
import pytest
import scripted_job
from evaluation_rig import EvalJob, spec
from huggingface_hub.errors import LocalEntryNotFoundError
from job_rig import manifest as published
from job_rig import report
from ports import free_port
from role_keys import KEYS
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.sandbox_api import ResetReply
from headway_api.status import ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.evaluation import units
from headway_coordinator.evaluation.candidates import Readable, check_template, manifest, readable
from headway_coordinator.evaluation.run import Evaluation
from headway_coordinator.faults import CandidateError
from headway_coordinator.spool import Spool
from headway_coordinator.trajectory.template import own_template


def trained(layout: Layout, kind: str, step: int = 7) -> ResolvedCandidate:
    return ResolvedCandidate.model_validate(
        {"name": "tuned", "kind": kind, "base": "s3://b/m", "dtype": "float32", "job": "refunds",
         "step": step, "uri": layout.weights(step), "serverSet": 0}
    )  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The layout of a training job that keeps the weights of step 7."""
    layout, store = Layout(f"file://{tmp_path}", "ns", "job", "uid"), FileStore()
    store.put(layout.step_history(7), report(7).model_dump_json().encode())
    store.put(f"{layout.weights(7)}/adapter_model.safetensors", b"weights")
    return layout


def test_a_base_model_is_what_the_servers_loaded() -> None:
    model = ResolvedCandidate(name="base", kind="Model", base="hf://org/name", dtype="bfloat16", server_set=0)
    found = manifest(model, FileStore())
    assert (found.kind, found.uri, found.canary) == ("base", "hf://org/name", None)


def test_an_adapter_has_the_manifest_its_learner_published(layout: Layout) -> None:
    assert manifest(trained(layout, "Adapter"), FileStore()) == published(7)


def test_full_weights_are_proven_by_the_learners_own_logprobs(layout: Layout) -> None:
    found = manifest(trained(layout, "Weights"), FileStore())
    assert found.kind == "base"
    assert found.canary == published(7).canary


@pytest.mark.parametrize("step", [7, 8])
def test_weights_that_are_not_kept_name_the_field_and_the_fix(layout: Layout, step: int) -> None:
    store = FileStore()
    store.delete([f"{layout.weights(7)}/adapter_model.safetensors"])
    with pytest.raises(CandidateError, match=f"refunds keeps no weights of step {step}") as raised:
        manifest(trained(layout, "Adapter", step), store)
    assert raised.value.field == "spec.candidates[tuned].checkpoint"
    assert "write best or a validated step in spec.candidates[tuned].checkpoint.step" in str(raised.value)
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
def test_a_models_fault_names_a_field_of_the_spec(tmp_path: Path, name: str, field: str) -> None:
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
    with pytest.raises(CandidateError) as raised:
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
def test_a_template_that_refuses_the_prompt_names_the_field(
    tmp_path: Path, template: str, family: str
) -> None:
    """A template may raise any error. The other candidates continue."""
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
    with pytest.raises(CandidateError, match="chat template does not accept the first messages") as raised:
        readable(resolved, of, first, FileStore(), tmp_path / "cache")
    assert raised.value.reason == "ChatTemplateUnusable"
    assert raised.value.field == "spec.candidates[plain].model.base"


@pytest.mark.parametrize(
    ("name", "field", "length"),
    [
        ("plain", "spec.candidates[plain].model.contextLength", "spec.candidates[plain].model.contextLength"),
        ("tuned", "spec.candidates[tuned].checkpoint.job", "spec.model.contextLength"),
    ],
)
def test_a_prompt_beyond_the_context_names_the_field(
    tmp_path: Path, name: str, field: str, length: str
) -> None:
    """The context length of trained weights is in the spec of their training job."""
    base = tmp_path / "model"
    tokenizer(base).save_pretrained(base)
    (base / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    of = spec(
        candidates=[
            {"name": "plain", "model": {"base": f"file://{base}"}},
            {"name": "tuned", "checkpoint": {"job": "refunds"}},
        ]
    )
    resolved = ResolvedCandidate.model_validate(
        {"name": name, "kind": "Model", "base": f"file://{base}", "dtype": "float32", "serverSet": 0}
    )
    first = ResetReply(messages=[{"role": "user", "content": "Look up brave-otter. " * 600}], tools=[])
    with pytest.raises(CandidateError) as raised:
        readable(resolved, of, first, FileStore(), tmp_path / "cache")
    assert (raised.value.reason, raised.value.field) == ("ContextTooShort", field)
    assert str(raised.value).endswith(f"; raise {length}, or shorten the prompt")


async def test_an_unavailable_hub_ends_only_its_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: Any, **__: Any) -> None:
        raise LocalEntryNotFoundError("Connection refused")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unavailable)
    monkeypatch.setattr(units, "RETRY_SECONDS", 0.01)
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


SHORT = {"sampling": {"temperature": 1.0, "maxTokens": 8}}
"""Turns that fit the context of a small model."""
OTHER = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
"""Another template that renders every conversation."""


def based(folder: Path, template: str | None = None) -> Path:
    """A base model's folder, with `template` instead of its own chat template."""
    base = folder / "model"
    tokenizer(base, template).save_pretrained(base)
    (base / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    return base


def adapted(layout: Layout, base: Path) -> ResolvedCandidate:
    return trained(layout, "Adapter").model_copy(update={"base": f"file://{base}"})


def of_template(text: str) -> Readable:
    return Readable(cast(Any, None), 512, text)


def test_template_is_compared_with_each_one_the_run_used(layout: Layout) -> None:
    store, tuned = FileStore(), trained(layout, "Adapter")
    check_template(tuned, of_template("a run of an earlier version kept none"), store)
    spool = Spool(store, layout)
    for text in ("one", "two", "one"):
        spool.keep_template(text)
    store.put(f"{layout.chat_templates}/README", b"three")
    assert store.get(layout.chat_template(sha256(b"one").hexdigest())) == b"one"
    assert len(store.list(layout.chat_templates)) == 3
    for text in ("one", "two"):
        check_template(tuned, of_template(text), store)
    check_template(
        ResolvedCandidate(name="base", kind="Model", base="s3://b/m"), of_template("another model's"), store
    )
    with pytest.raises(CandidateError) as raised:
        check_template(tuned, of_template("three"), store)
    assert (raised.value.reason, raised.value.field) == (
        "ChatTemplateDiffers",
        "spec.candidates[tuned].checkpoint",
    )


async def test_a_training_job_stores_the_template_it_uses(tmp_path: Path) -> None:
    store, training = FileStore(), scripted_job.job(tmp_path)
    coordinator = Coordinator(
        training, KEYS, store, tmp_path / "cache", lambda status: None, port=free_port()
    )
    layout = coordinator.layout
    running = asyncio.create_task(coordinator.run())
    try:
        async with asyncio.timeout(100):
            while not (kept := store.list(layout.chat_templates)):
                assert not running.done(), await running
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert kept == [layout.chat_template(sha256(QWEN3_TEMPLATE.encode()).hexdigest())]
    assert store.get(kept[0]).decode() == QWEN3_TEMPLATE
    tuned = trained(layout, "Adapter").model_copy(update={"base": training.spec.model.base})
    first = ResetReply(messages=[{"role": "user", "content": "Hello"}], tools=[])
    of = spec(candidates=[{"name": "tuned", "checkpoint": {"job": "job"}}], evaluation=SHORT)
    check_template(tuned, readable(tuned, of, first, store, tmp_path / "another cache"), store)


@pytest.mark.parametrize(
    ("base", "pins"), [("s3://b/m", False), ("hf://org/name", True)], ids=["bucket", "hub"]
)
def test_another_template_names_the_earlier_one_and_the_fix(layout: Layout, base: str, pins: bool) -> None:
    store = FileStore()
    Spool(store, layout).keep_template("earlier")
    tuned = trained(layout, "Adapter").model_copy(update={"base": base})
    with pytest.raises(CandidateError) as raised:
        check_template(tuned, of_template("now"), store)
    earlier = layout.chat_template(sha256(b"earlier").hexdigest())
    assert str(raised.value).startswith(
        f"{base} has another chat template now than job refunds was trained with; put {earlier} back into it "
        "as chat_template.jinja"
    )
    assert ("pin spec.model.revision" in str(raised.value)) == pins


async def test_a_base_with_another_template_ends_only_its_candidate(layout: Layout, tmp_path: Path) -> None:
    """The candidate works again once its template is restored, as the message says."""
    base, store = based(tmp_path), FileStore()
    job = EvalJob(
        tmp_path,
        spec(
            candidates=[
                {"name": "tuned", "checkpoint": {"job": "refunds"}},
                {"name": "other", "model": {"base": "s3://b/m"}},
            ],
            evaluation=SHORT,
        ),
    )
    tuned, no = adapted(layout, base), cast(Any, None)
    first = ResetReply(messages=[{"role": "user", "content": "Hello"}], tools=[])
    Spool(store, layout).keep_template(own_template(tokenizer(tmp_path / "as it was trained")))

    def made(evaluation: Evaluation, cache: str) -> units.Units:
        of = EvalConfig(name="job", namespace="ns", uid="uid", spec=job.spec, candidates=(tuned,))
        return units.Units(
            of, evaluation.state, no, "key", store, tmp_path / cache, no, first, no, no, no, no
        )

    evaluation = await job.coordinator()
    assert made(evaluation, "0")._prepare(tuned)[1] == published(7)
    based(tmp_path, OTHER)
    running = made(evaluation, "1")
    running.changed, running.discover = (lambda: None), (lambda number: no)
    await evaluation.run([*running.all(), job.unit("other")])
    stages = {name: (each.stage, each.reason) for name, each in evaluation.state.candidates.items()}
    assert stages == {"tuned": ("Failed", "ChatTemplateDiffers"), "other": ("Complete", None)}
    message = evaluation.state.candidates["tuned"].message or ""
    assert message.startswith("spec.candidates[tuned].checkpoint: file://")
    [earlier] = store.list(layout.chat_templates)
    assert earlier in message
    (base / "chat_template.jinja").write_bytes(store.get(earlier))
    assert made(evaluation, "2")._prepare(tuned)[1] == published(7)


@pytest.mark.parametrize(
    ("bases", "models"),
    [
        (["hf://a/one", "hf://a/one"], {"one": None, "far": "gpt-x"}),
        (["hf://a/one", "hf://a/two"], {"one": "hf://a/one", "two": "hf://a/two", "far": "gpt-x"}),
    ],
)
async def test_a_unit_names_the_model_whose_prices_apply(
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
