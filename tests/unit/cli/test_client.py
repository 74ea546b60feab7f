"""The Python client: jobs are started, awaited and read on a cluster or this machine, also by coroutines."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stub_cluster
import written_run
from finished_run import FinishedRun
from stub_cluster import NAMESPACE, StubCluster

from headway_api import names
from headway_api.artifacts import Layout
from headway_api.job_folder import JobFolder
from headway_api.records import Outcome, Purpose
from headway_api.run_files import RunFiles
from headway_api.store import FileStore
from headway_cli import bill, episodes
from headway_cli.client import (
    AsyncRun,
    AsyncTrainingClient,
    ClusterError,
    ManifestError,
    Run,
    RunFailedError,
    RunHeldError,
    RunNotFoundError,
    TrainingClient,
    child,
    document,
    on_machine,
    outcome,
    waiting,
)
from headway_cli.cluster import ClusterUnreachableError
from headway_cli.local import manifest
from headway_cli.local.run import opened

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "sop-quickstart" / "job.yaml"
STEPS = 4
WAITS = {"base": "file:///nowhere", "warmStart": {"job": "absent"}}
"""A model that warm-starts from a job that is absent, so that nothing starts."""


def condition(kind: str, reason: str = "R", message: str = "", **more: Any) -> dict[str, Any]:
    since = "2026-01-01T00:00:00Z"
    fields = {"type": kind, "status": "True", "reason": reason, "message": message}
    return {**fields, "lastTransitionTime": since, **more}


def stored_job(name: str, *conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": "u", "generation": 2}
    status = {"conditions": [*conditions], **more}
    return {"kind": "RLTrainingJob", "metadata": metadata, "spec": {}, "status": status}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one complete local job, `refunds`."""
    folder = tmp_path_factory.mktemp("jobs")
    job = folder / "refunds"
    made = written_run.write(job / "artifacts", steps=STEPS, every=2)
    metadata = {"name": "refunds", "namespace": made.layout.namespace, "uid": made.layout.uid}
    JobFolder(job).write({"kind": "RLTrainingJob", "metadata": metadata, "spec": {}})
    ended = {"conditions": [condition("Complete")], "progress": {"step": STEPS}}
    JobFolder(job).write_status("headway-operator", ended)
    return folder


@pytest.fixture
def run(jobs: Path) -> Run[Any]:
    return TrainingClient(local=True, folder=jobs).run("refunds")


def files(jobs: Path) -> RunFiles:
    """The artifacts of `refunds`."""
    metadata = JobFolder(jobs / "refunds").whole()["metadata"]
    identity = (metadata[key] for key in ("namespace", "name", "uid"))
    return RunFiles(FileStore(), Layout(f"file://{jobs}/refunds/artifacts", *identity))


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    made = StubCluster()
    with stub_cluster.served(made, tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.02)
        yield made


def on_cluster(stub: StubCluster, job: dict[str, Any]) -> Run[Any]:
    stub.jobs["rltrainingjobs", job["metadata"]["name"]] = job
    return TrainingClient().run(job["metadata"]["name"])


# metrics


def test_metrics_are_those_of_a_step_and_its_batch(run: Run[Any], jobs: Path) -> None:
    stored = files(jobs)
    batches, frame = stored.batch_metrics(), run.metrics()
    assert (frame.index.name, [*frame.index]) == ("step", [*range(1, STEPS + 1)])
    assert [*frame.columns] == sorted(frame.columns)
    for report in stored.steps()[1:]:
        expected = {**report.metrics, **batches[report.step].metrics}
        assert {"training/entropy", "rollout/reward/mean"} <= expected.keys()
        assert frame.loc[report.step].dropna().to_dict() == expected


def test_a_step_whose_batch_has_no_metrics_has_gaps(jobs: Path, tmp_path: Path) -> None:
    shutil.copytree(jobs, tmp_path / "jobs")
    next(tmp_path.rglob("figures/000002.json")).unlink()
    frame = TrainingClient(local=True, folder=tmp_path / "jobs").run("refunds").metrics()
    assert math.isnan(frame.loc[2, "rollout/reward/mean"])
    assert frame.loc[2, "training/entropy"] > 0
    assert not math.isnan(frame.loc[3, "rollout/reward/mean"])


def test_the_validations_are_the_stored_ones(run: Run[Any], jobs: Path) -> None:
    frame = run.validations()
    assert [*frame.index] == [0, 2, 4]
    for each in files(jobs).validations():
        row = frame.loc[each.step]
        assert (row["reward"], row["external_score"], row["success"], row["episodes"], row["failed"]) == (
            each.reward,
            each.external_score,
            each.success,
            each.episodes,
            each.failed,
        )
        assert {name: row[name] for name in each.metrics} == each.metrics


def test_a_run_without_a_step_has_an_empty_table(tmp_path: Path) -> None:
    FinishedRun(tmp_path / "desk").job().prices()
    frame = TrainingClient(local=True, folder=tmp_path).run("desk").metrics()
    assert (len(frame), frame.index.name) == (0, "step")


def test_without_pandas_the_message_says_what_to_install(
    run: Run[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        run.metrics()


def test_an_evaluation_has_no_steps(tmp_path: Path) -> None:
    made = FinishedRun(tmp_path / "desk").job().played()
    raw = json.loads((tmp_path / "desk" / "job.json").read_text())
    (tmp_path / "desk" / "job.json").write_text(json.dumps({**raw, "kind": "RLEvalJob"}))
    found = TrainingClient(local=True, folder=made.folder.parent).run("desk", "eval")
    with pytest.raises(RunNotFoundError, match="desk is an evaluation and has no steps"):
        found.metrics()


def test_a_record_that_cannot_be_read_is_named(jobs: Path, tmp_path: Path) -> None:
    shutil.copytree(jobs, tmp_path / "jobs")
    next(tmp_path.rglob("steps/000001.json")).write_text('{"step": 1')
    with pytest.raises(RunNotFoundError, match=r"steps/000001\.json"):
        TrainingClient(local=True, folder=tmp_path / "jobs").run("refunds").metrics()


# episodes


def test_episodes_come_with_their_step_and_row(run: Run[Any], jobs: Path) -> None:
    stored = files(jobs)
    expected = [
        (group.step, group.row, episode)
        for group in stored.groups(stored.addresses(Purpose.TRAIN))
        for episode in group.episodes
    ]
    found = [*run.trajectories()]
    assert [(each.step, each.row, each.episode) for each in found] == expected
    assert len(found) == STEPS * 2 * 4
    assert str(found[0]) == episodes.text(found[0])
    assert repr(found[0]) == f"<Trajectory {found[0].episode.episode_id}>"


def test_a_filter_selects_the_matching_episodes(run: Run[Any]) -> None:
    every = [*run.trajectories()]
    assert [*run.trajectories(step=1)] == [each for each in every if each.step == 1]
    row = every[-1].row
    assert [*run.trajectories(row=row)] == [each for each in every if each.row == row]
    ends = [each for each in every if each.episode.outcome is Outcome.COMPLETED]
    assert [*run.trajectories(outcome="Completed")] == ends
    apart = [each.gap for each in run.trajectories(disagree=True)]
    assert apart == sorted((each.gap for each in every if each.gap), reverse=True)
    held_out = [*run.trajectories("validation", step=2)]
    assert {(each.purpose, each.step) for each in held_out} == {(Purpose.VALIDATION, 2)}
    assert [*run.trajectories(step=999)] == []


def test_groups_are_read_lazily(jobs: Path, tmp_path: Path) -> None:
    shutil.copytree(jobs, tmp_path / "jobs")
    last = max(tmp_path.rglob("trajectories/train/*.json.gz"))
    last.write_bytes(b"torn")
    found = TrainingClient(local=True, folder=tmp_path / "jobs").run("refunds").trajectories()
    next(found)
    with pytest.raises(RunNotFoundError, match=last.name):
        list(found)


@pytest.mark.parametrize("wrong", [{"purpose": "tests"}, {"outcome": "Lost"}])
def test_an_unknown_purpose_or_outcome_is_refused_at_once(run: Run[Any], wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong.values()))):
        run.trajectories(**wrong)  # type: ignore[arg-type]


# the page and the bill


def test_a_run_becomes_a_page(run: Run[Any], tmp_path: Path) -> None:
    page = run.report(tmp_path / "page.html")
    assert "<title>team/refunds</title>" in page.read_text()


def test_the_bill_is_the_ledgers(tmp_path: Path) -> None:
    made = FinishedRun(tmp_path / "desk").job().prices().played()
    client = TrainingClient(local=True, folder=made.folder.parent)
    found = client.run("desk").cost()
    assert {each.key for each in found.used} >= {"sample", "train"}
    assert found == bill.read(client.run("desk")._job.stored(), None)


# waiting


def local_run(folder: Path, *conditions: dict[str, Any]) -> Run[Any]:
    """A local job whose status has these conditions."""
    FinishedRun(folder / "desk").job({"conditions": [*conditions]})
    return TrainingClient(local=True, folder=folder).run("desk")


def test_the_wait_for_a_job_that_is_complete_returns_its_status(run: Run[Any]) -> None:
    status = run.wait()
    assert status.progress is not None
    assert status.progress.step == STEPS
    assert run.status == run.poll() == status


def test_the_wait_for_a_job_that_failed_raises_with_the_reason(tmp_path: Path) -> None:
    failed = local_run(tmp_path, condition("Failed", "PreflightFailed", "the reward is constant"))
    with pytest.raises(
        RunFailedError, match="desk failed: PreflightFailed: the reward is constant"
    ) as raised:
        failed.wait()
    assert (raised.value.reason, raised.value.message) == ("PreflightFailed", "the reward is constant")


def test_the_wait_for_an_idle_job_says_why(tmp_path: Path) -> None:
    held = local_run(tmp_path, condition("Suspended", "BudgetExhausted", "raise spec.budget.usd to 7"))
    with pytest.raises(RunHeldError, match=r"BudgetExhausted: raise spec\.budget\.usd to 7"):
        held.wait()


def test_the_wait_for_a_job_that_no_process_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunHeldError, match="no process runs this job: train it again"):
        local_run(tmp_path, condition("Progressing")).wait()


def test_a_wait_on_a_cluster_job_raises_once_the_job_fails(stub: StubCluster) -> None:
    run = on_cluster(stub, stored_job("desk", condition("Progressing")))
    with pytest.raises(TimeoutError, match=r"desk still runs after 0\.05 s"):
        run.wait(0.05)
    failed = stored_job("desk", condition("Failed", "LearnerFailed", "no memory is left"))
    timer = threading.Timer(0.1, stub.jobs.update, [{("rltrainingjobs", "desk"): failed}])
    timer.start()
    with pytest.raises(RunFailedError, match="desk failed: LearnerFailed: no memory is left"):
        run.wait(30)
    timer.join()


PAUSE = {"time": "2026-01-01T00:00:00Z", "step": 3, "signal": "entropy", "message": "m", "resume": "r"}
ENDED = {"annotations": {names.ANNOTATION_RESUME: PAUSE["time"]}}


@pytest.mark.parametrize(
    ("metadata", "status", "held"),
    [
        ({}, {}, True),
        ({"generation": 3}, {}, False),  # the spec was changed since
        ({}, {"pause": PAUSE}, True),
        (ENDED, {"pause": PAUSE}, False),  # a person has ended the pause
        (ENDED, {"pause": PAUSE, "resumedPause": PAUSE["time"]}, True),  # and then suspended the job
    ],
)
def test_a_job_is_idle_by_its_newest_spec(
    metadata: dict[str, Any], status: dict[str, Any], held: bool
) -> None:
    job = stored_job("desk", condition("Suspended", "Suspended", observedGeneration=2), **status)
    job["metadata"] |= metadata
    assert outcome.is_held(job) is held


def answers(*results: Any) -> Callable[[], Any]:
    """A function that returns these results one after the other, and raises those that are errors."""
    each = iter(results)

    def ask() -> Any:
        found = next(each)
        if isinstance(found, Exception):
            raise found
        return found

    return ask


def test_a_cluster_that_has_answered_may_be_down_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = waiting.Waiting("desk", answers(None, ClusterUnreachableError("away"), "done"), None)
    assert [wait.look() for _ in range(3)] == [None, None, "done"]
    with pytest.raises(ClusterUnreachableError):
        waiting.Waiting("desk", answers(ClusterUnreachableError("away")), None).look()
    late = waiting.Waiting("desk", answers(None, ClusterUnreachableError("away")), None)
    late.look()
    monkeypatch.setattr(waiting, "UNREACHABLE_SECONDS", -1.0)
    with pytest.raises(ClusterUnreachableError):
        late.look()


# on a cluster


def test_a_job_is_applied_with_its_changes(stub: StubCluster) -> None:
    run = TrainingClient().train(JOB, name="mine", schedule={"maxSteps": 3})
    (applied,) = stub.applied
    assert applied["metadata"] == {"name": "mine", "namespace": "headway-demo"}
    assert applied["spec"]["schedule"] == {"maxSteps": 3}
    assert applied["spec"]["model"]["lora"] == {"rank": 16, "alpha": 32}
    assert (run.kind, run.name) == ("RLTrainingJob", "mine")
    assert run._job.cluster.namespace == "headway-demo"  # type: ignore[attr-defined]


def test_an_evaluation_is_applied_as_one(stub: StubCluster) -> None:
    run = TrainingClient().evaluate(JOB.with_name("eval.yaml"))
    assert (run.kind, stub.applied[0]["kind"]) == ("RLEvalJob", "RLEvalJob")


def test_a_job_is_suspended_and_resumed(stub: StubCluster) -> None:
    run = on_cluster(stub, stored_job("desk", pause=PAUSE))
    run.suspend()
    run.resume()
    ended = {"annotations": {names.ANNOTATION_RESUME: PAUSE["time"]}}
    assert stub.applied == [{"spec": {"suspend": True}}, {"spec": {"suspend": False}, "metadata": ended}]


def test_artifacts_of_a_cluster_job_are_read_from_its_store(stub: StubCluster, jobs: Path) -> None:
    run = on_cluster(stub, stored_job("desk"))
    with pytest.raises(RunNotFoundError, match="desk: the job has written nothing yet"):
        run.metrics()
    uri = files(jobs).layout.root
    here = TrainingClient(local=True, folder=jobs).run("refunds")
    run = on_cluster(stub, stored_job("desk", artifacts={"uri": uri}))
    assert run.metrics().equals(here.metrics())
    assert next(run.trajectories()) == next(here.trajectories())


def test_a_cluster_has_no_fresh_start(stub: StubCluster) -> None:
    with pytest.raises(ManifestError, match="fresh: applies only to jobs on this machine"):
        TrainingClient().train(JOB, fresh=True)
    assert stub.applied == []


def test_the_error_for_an_unknown_name_has_near_ones(stub: StubCluster, jobs: Path) -> None:
    stub.jobs["rltrainingjobs", "refunds"] = stored_job("refunds")
    with pytest.raises(ClusterError, match=r"has no RLTrainingJob refund; did you mean refunds\?"):
        TrainingClient().run("refund")
    here = TrainingClient(local=True, folder=jobs)
    with pytest.raises(RunNotFoundError, match=r"has no job refund; did you mean refunds\?"):
        here.run("refund")
    for name in ("other", "../jobs/refunds", ""):
        with pytest.raises(RunNotFoundError, match="has no job"):
            here.run(name)


def test_a_job_of_the_other_kind_is_not_found(jobs: Path) -> None:
    with pytest.raises(RunNotFoundError, match="has an RLTrainingJob, not an RLEvalJob"):
        TrainingClient(local=True, folder=jobs).run("refunds", "eval")


def test_a_cluster_and_this_machine_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="leave out context"):
        TrainingClient("demo", local=True)


# the job


def test_a_change_is_merged_field_by_field() -> None:
    block = {"a": {"b": 1, "c": 2}, "d": {"e": 3}, "f": 4}
    made = document.laid_over(block, {"a": {"c": 5}, "d": 6, "f": {"g": 7}})
    assert made == {"a": {"b": 1, "c": 5}, "d": 6, "f": {"g": 7}}
    assert block["a"] == {"b": 1, "c": 2}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({}, "kind: write RLTrainingJob or RLEvalJob"),
        ({"kind": "RLEvalJob"}, r"this is an RLEvalJob: call evaluate\(\)"),
        ({"kind": "RLTrainingJob"}, "metadata.name: write a name"),
        ({"kind": "RLTrainingJob", "metadata": {"name": "My Job"}}, "metadata.name: write a name"),
        ({"kind": "RLTrainingJob", "metadata": "x"}, "metadata: write fields below it"),
        ({"kind": "RLTrainingJob", "metadata": {"name": "a"}, "spec": 3}, "spec: write fields below it"),
    ],
)
def test_an_object_that_is_not_a_job_is_refused(job: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        document.made(job, names.TRAINING_KIND, None, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"output": {"uri": Path("/x")}},
            r"^spec\.output\.uri: PosixPath is no type of JSON: write a str, int",
        ),
        ({"schedule": {"maxSteps": Decimal(3)}}, r"^spec\.schedule\.maxSteps: Decimal is no type of JSON"),
        ({"suites": [{"name": object()}]}, r"^spec\.suites\.0\.name: object is no type of JSON"),
    ],
)
def test_a_change_that_is_not_json_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        document.made(
            {"kind": "RLTrainingJob", "metadata": {"name": "a"}}, names.TRAINING_KIND, None, changes
        )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"absent\.yaml does not exist: name the file"):
        TrainingClient(local=True, folder=tmp_path).train(tmp_path / "absent.yaml")


# on this machine


def test_a_job_without_a_file_needs_the_folder_of_its_modules(tmp_path: Path) -> None:
    job = {"kind": "RLTrainingJob", "metadata": {"name": "mine"}, "spec": {}}
    with pytest.raises(ManifestError, match=r"TrainingClient\(local=True, modules=FOLDER\)"):
        TrainingClient(local=True, folder=tmp_path).train(job)


@pytest.mark.filterwarnings("ignore:this system gives a user no namespaces")
def test_a_job_runs_suspends_resumes_and_ends_with_its_starter(tmp_path: Path) -> None:
    client = TrainingClient(local=True, folder=tmp_path)
    with pytest.warns(UserWarning, match=r"spec\.tracking\.mlflow is ignored"):
        run = client.train(JOB, name="mine", model=WAITS)
    try:
        assert run.poll() is None
        assert client.run("mine").poll() is None
        run.suspend()
        with pytest.raises(RunHeldError, match=r"Suspended: every pod is gone: spec\.suspend is true"):
            run.wait(60)
        run.resume()
        assert run.poll() is None
        process = child.children[tmp_path / "mine"]
        process.let_go()  # as the operating system does whenever this process ends
        assert process.process.wait(60) == 130
        with pytest.raises(RunHeldError, match="no process runs this job"):
            run.wait(60)
    finally:
        child.children.pop(tmp_path / "mine").end()


def played_by(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the process of local jobs by a shell script."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_refusal_of_the_command_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played_by("echo odd >&2; echo headway: the job runs already >&2; exit 2", tmp_path, monkeypatch)
    with pytest.raises(ManifestError, match=r"^the job runs already$"):
        TrainingClient(local=True, folder=tmp_path).train(JOB)


def test_a_job_that_another_command_runs_goes_on(tmp_path: Path) -> None:
    made = manifest.changed(manifest.read(JOB), [])
    client = TrainingClient(local=True, folder=tmp_path)
    with opened(made, tmp_path / "sop-quickstart", print):
        run = client.run("sop-quickstart")
        assert run.poll() is None
        run.resume()  # this starts nothing
    with pytest.raises(RunHeldError, match="no process runs this job"):
        run.poll()
    with pytest.raises(ManifestError, match=r"modules=FOLDER"):
        run.resume()


def test_a_process_that_crashes_at_once_shows_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played_by("echo boom >&2; exit 7", tmp_path, monkeypatch)
    with pytest.raises(RunFailedError, match="Crashed: its process ended with 7: boom"):
        TrainingClient(local=True, folder=tmp_path).train(JOB)


def test_a_process_that_crashes_later_fails_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FinishedRun(tmp_path / "desk").job()
    played_by("echo begun; sleep 0.5; echo boom >&2; exit 9", tmp_path, monkeypatch)
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
    run = TrainingClient(local=True, folder=tmp_path).train(JOB, name="desk")
    with pytest.raises(RunFailedError, match="Crashed: its process ended with 9: boom"):
        run.wait(30)


def test_ctrl_c_while_a_job_begins_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    played_by(f"cat > /dev/null; touch {tmp_path}/ended; exit 130", tmp_path, monkeypatch)
    monkeypatch.setattr(on_machine, "time", SimpleNamespace(sleep=interrupted))
    with pytest.raises(KeyboardInterrupt):
        TrainingClient(local=True, folder=tmp_path).train(JOB)
    assert (tmp_path / "ended").exists()


# the notebook


def test_the_notebook_compiles_and_has_no_outputs() -> None:
    notebook = json.loads((ROOT / "examples" / "notebooks" / "first_run.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * 6
    for cell in code:
        compile("".join(cell["source"]), cell["id"], "exec")


# as coroutines


def test_every_method_has_a_coroutine_with_the_same_arguments() -> None:
    for blocking, other in ((Run, AsyncRun), (TrainingClient, AsyncTrainingClient)):
        public = {name for name in vars(blocking) if not name.startswith("_")}
        assert public == {name for name in vars(other) if not name.startswith("_")}
        for name in public - {"status", "kind", "name"}:
            ours, theirs = (inspect.signature(getattr(each, name)) for each in (blocking, other))
            assert ours.parameters == theirs.parameters, name
    assert inspect.signature(TrainingClient) == inspect.signature(AsyncTrainingClient)


async def test_coroutines_answer_as_the_methods_do(run: Run[Any], jobs: Path, tmp_path: Path) -> None:
    other = await AsyncTrainingClient(local=True, folder=jobs).run("refunds")
    assert (other.kind, other.name) == (run.kind, run.name)
    assert await other.status() == run.status
    assert await other.wait() == run.wait()
    assert (await other.metrics()).equals(run.metrics())
    assert (await other.validations()).equals(run.validations())
    found = [each async for each in other.trajectories("train", step=1, disagree=True)]
    assert found == [*run.trajectories("train", step=1, disagree=True)]
    assert "team/refunds" in (await other.report(tmp_path / "page.html")).read_text()


async def test_coroutines_raise_as_the_methods_do(stub: StubCluster) -> None:
    client = AsyncTrainingClient()
    with pytest.raises(ClusterError, match="has no RLTrainingJob desk"):
        await client.run("desk")
    stub.jobs["rltrainingjobs", "desk"] = stored_job("desk", condition("Progressing"))
    run = await client.run("desk")
    await run.suspend()
    await run.resume()
    assert [each["spec"]["suspend"] for each in stub.applied] == [True, False]
    with pytest.raises(TimeoutError):
        await run.wait(0.05)
    with pytest.raises(RunNotFoundError, match="has used nothing yet"):
        await run.cost()
    begun = await client.train(JOB, name="mine")
    assert begun.name == "mine"


async def test_a_wait_that_is_cancelled_ends_at_once(stub: StubCluster) -> None:
    stub.jobs["rltrainingjobs", "desk"] = stored_job("desk", condition("Progressing"))
    run = await AsyncTrainingClient().run("desk")
    task = asyncio.create_task(run.wait())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
