"""The spool: its error for a place it cannot write to, and how it reads the steps that were taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from episodes import a_group
from job_rig import report
from refusing_bucket import refusing_store

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.exits import RESTART, JobError
from headway_api.records import Purpose
from headway_api.run_files import valid_and_undone
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.trust import EvaluationSpec
from headway_api.store import FileStore
from headway_coordinator.evaluation.summary import Summary
from headway_coordinator.spool import Spool


def test_unwritable_bucket_is_named_before_anything_starts() -> None:
    spool = Spool(refusing_store("AccessDenied", 403), Layout("s3://typo/runs", "rl", "refunds", "uid"))
    with pytest.raises(JobError) as refused:
        spool.take_start_number()
    termination = refused.value.termination
    assert (termination.reason, termination.field, refused.value.permanent) == (
        "BucketUnavailable",
        "spec.output.uri",
        True,
    )
    assert "bucket 'typo' cannot be used" in termination.message


def test_steps_beyond_the_newest_version_are_undone() -> None:
    """The learner took steps 1 to 4, resumed at the durable step 2, and has taken step 3 again."""
    found = [report(0), report(1), report(2, 1), report(3, 1), report(4)]
    kept, undone = valid_and_undone(found[::-1])
    assert [str(r.version) for r in kept] == ["0.0", "0.1", "1.2", "1.3"]
    assert [str(r.version) for r in undone] == ["0.4"]
    assert valid_and_undone([]) == ([], [])


@pytest.mark.parametrize(("pointer", "durable"), [(None, 1), (2, 2), (3, 3), (9, 3)])
def test_a_starting_coordinator_knows_the_durable_step(
    tmp_path: Path, pointer: int | None, durable: int
) -> None:
    """The learner may have ended meanwhile, and will not report it again."""
    store, layout = FileStore(), Layout(f"file://{tmp_path}", "rl", "refunds", "uid")
    for step in range(4):
        store.put(
            layout.step_history(step), report(step, durable=max(0, step - 2)).model_dump_json().encode()
        )
    if pointer is not None:
        store.put(layout.latest, json.dumps({"step": pointer}).encode())
    replay = Spool(store, layout).replay()
    assert replay.reports[-1].durable == durable
    assert replay.undone == []


def test_the_summary_of_an_undone_step_is_not_used(tmp_path: Path) -> None:
    """The step is taken again, so its groups are read instead, and rows without an answer are retried."""
    store, layout = FileStore(), Layout(f"file://{tmp_path}", "rl", "refunds", "uid")
    spool = Spool(store, layout)
    for step in (2, 4):
        group = a_group(f"v{step:06d}-000000", [1.0], step=step, purpose=Purpose.VALIDATION)
        spool.put(group)
        spool.conclude(Summary.of(step, [group], EvaluationSpec(), None))
    for step in range(3):
        store.put(layout.step_history(step), report(step).model_dump_json().encode())
    replay = spool.replay()
    assert [*replay.summaries] == [2]
    assert {step: len(found) for step, found in replay.validations.items()} == {4: 1}


@pytest.mark.parametrize("pointer", [b"step 12", b"{}", b"12", b'{"step": null}'])
def test_unreadable_pointer_is_left_to_the_learner_to_explain(tmp_path: Path, pointer: bytes) -> None:
    """A person wrote the pointer. The learner, which must resume there, ends with `CheckpointUnusable`."""
    store, layout = FileStore(), Layout(f"file://{tmp_path}", "rl", "refunds", "uid")
    store.put(layout.step_history(0), report(0).model_dump_json().encode())
    store.put(layout.latest, pointer)
    replay = Spool(store, layout).replay()
    assert replay.reports[-1].durable == report(0).durable


def test_coordinator_is_superseded_by_a_newer_start(tmp_path: Path) -> None:
    spool = Spool(FileStore(), Layout(f"file://{tmp_path}", "rl", "refunds", "uid"))
    first = spool.take_start_number()
    spool.refuse_superseded(first)
    second = spool.take_start_number()
    spool.refuse_superseded(second)
    with pytest.raises(JobError, match="continues this job") as refused:
        spool.refuse_superseded(first)
    assert (refused.value.termination.reason, refused.value.code) == ("Superseded", RESTART)


def test_a_lost_baseline_groups_id_can_be_reused(tmp_path: Path) -> None:
    spool = Spool(FileStore(), Layout(f"file://{tmp_path}", "rl", "refunds", "uid"))
    lost = a_group("p0-000000", [None, None], purpose=Purpose.PREFLIGHT)
    retried = a_group("p0-000000", [1.0, None], purpose=Purpose.PREFLIGHT, retried=1)
    assert [spool.put(lost), spool.put(retried)] == [lost, retried]
    assert spool.baseline() == [retried, lost]


def test_a_described_job_has_no_secret_and_is_still_a_spec(tmp_path: Path) -> None:
    store, layout = FileStore(), Layout(f"file://{tmp_path}", "rl", "refunds", "uid")
    template = {"spec": {"containers": [{"name": "c", "env": [{"name": "KEY", "value": "hunter2"}]}]}}
    spec = {
        "model": {"base": "hf://acme/tiny"},
        "data": {split: {"uri": f"s3://b/{split}.jsonl"} for split in ("train", "validation")},
        "environment": {"image": "i", "entrypoint": "m:C", "config": {"token": "hunter2"}},
        "learner": {"podTemplate": template},
        "tracking": {"mlflow": {"uri": "http://me:hunter2@mlflow"}},
        "output": {"uri": "s3://b/out", "endpointUrl": "http://me:hunter2@store?key=hunter2"},
    }
    identity = {"name": "refunds", "namespace": "rl", "uid": "uid"}
    Spool(store, layout).describe(JobConfig.model_validate({**identity, "spec": spec}))
    text = store.get(layout.job).decode()
    assert "hunter2" not in text
    found = json.loads(text)
    assert {name: found[name] for name in identity} == identity
    kept = RLTrainingJobSpec.model_validate(found["spec"])
    assert (kept.model.base, kept.output.endpoint_url) == ("hf://acme/tiny", "http://store")
