"""What the tools of `headway mcp` return, refuse and cut, tested with the SDK's client in this process."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import job_with_tasks
import mcp_project
import pytest
import stub_cluster
import yaml
from finished_run import NAME
from mcp.shared.exceptions import MCPError
from mcp_project import INJECTION, LOG, STEPS, InProcess, answer, error, text
from stub_cluster import NAMESPACE, StubCluster

from headway_api.document import Json
from headway_api.records import GroupRecord
from headway_api.store import FileStore
from headway_cli import cluster as clusters
from headway_cli.mcp_server import bounds, catalogue, jobs, verb
from headway_cli.mcp_server.workspace import Workspace
from headway_coordinator.spool import encode

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "sop-quickstart" / "job.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that tests must not change."""
    return mcp_project.written(tmp_path_factory.mktemp("made"))


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project as the current folder, with jobs, and no cluster."""
    folder = tmp_path / "project"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    absent = str(folder / "no-kubeconfig")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", absent)
    return folder


@pytest.fixture
def reader(project: Path) -> InProcess:
    """A server that only reads."""
    return InProcess(Workspace(project))


@pytest.fixture
def stub(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    """A cluster with the training job `far`, whose artifacts are those of `good`."""
    made = StubCluster()
    run = f"file://{project}/.headway/good/artifacts/team/good/0f0e0d0c-1111-4222-8333-444455556666"
    metadata = {"name": "far", "namespace": NAMESPACE, "uid": "u", "generation": 1}
    status = {"state": "Running", "artifacts": {"uri": run}, "usage": {"trainTokens": 7, "cost": "0.50"}}
    job = {"kind": "RLTrainingJob", "metadata": metadata, "spec": {}, "status": status}
    made.jobs["rltrainingjobs", "far"] = job
    made.pods = [stub_cluster.pod("far-learner-0", "learner")]
    made.logs["far-learner-0", "learner"] = [f"far {n}" for n in range(9)]
    with stub_cluster.served(made, project) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        yield made


@pytest.fixture
def changer(project: Path, stub: StubCluster) -> InProcess:
    """A server that may change jobs of the cluster."""
    return InProcess(Workspace(project, allows_changes=True))


async def test_jobs_of_this_machine_are_listed(reader: InProcess) -> None:
    found = answer(await reader.call_tool("jobs", {}))
    assert {each["job"]: each["state"] for each in found["jobs"]} == {
        "desk": "Complete", "good": "Running", "bad": "Running", "judged": "Pending",
    }  # fmt: skip
    assert found["notes"][0].startswith("no jobs of a cluster are listed: no cluster is configured")


async def test_jobs_are_listed_by_state_up_to_a_limit(reader: InProcess) -> None:
    found = answer(await reader.call_tool("jobs", {"state": "Running", "limit": 1}))
    assert [each["state"] for each in found["jobs"]] == ["Running"]
    assert found["notes"][-1] == "1 more; write a higher limit, or a state"


async def test_an_unreadable_job_does_not_hide_the_others(reader: InProcess, project: Path) -> None:
    (project / ".headway/good/status.headway-operator.json").write_text("{")
    (project / ".headway/bad/job.json").write_text('{"metadata": {}}')
    found = answer(await reader.call_tool("jobs", {}))
    assert {each["job"] for each in found["jobs"]} == {"desk", "judged"}
    assert {each.partition(" ")[0] for each in found["notes"]} == {"good", "bad", "no"}


async def test_a_link_in_a_circle_is_an_error(reader: InProcess, project: Path) -> None:
    (project / "circle").symlink_to("circle")
    message = error(await reader.call_tool("estimate", {"file": "circle"}))
    assert message.startswith("file: ")
    assert error(await reader.call_tool("cost", {"job": "circle"})).startswith("job: ")


async def test_a_status_is_the_jobs_own(reader: InProcess) -> None:
    found = answer(await reader.call_tool("status", {"job": "desk", "spec": True}))
    assert (found["job"], found["kind"], found["at"]) == ("desk", "RLTrainingJob", "this machine")
    assert found["status"]["state"] == "Complete"
    assert found["line"].startswith("state Complete")
    assert found["spec"]["model"]["base"] == "hf://org/base"
    assert "spec" not in answer(await reader.call_tool("status", {"job": "desk"}))


async def test_logs_end_with_the_newest_line(reader: InProcess) -> None:
    found = answer(await reader.call_tool("logs", {"job": "desk", "role": "learner", "tail": 2}))
    assert found["lines"] == [{"writer": LOG, "text": f"line {n}"} for n in (48, 49)]


async def test_a_role_that_wrote_nothing_is_noted(reader: InProcess) -> None:
    found = answer(await reader.call_tool("logs", {"job": "desk", "role": "judge"}))
    assert (found["lines"], found["notes"]) == ([], ["no such process has written anything"])


async def test_long_logs_keep_their_end_and_say_so(reader: InProcess, project: Path) -> None:
    path = project / ".headway" / NAME / "logs" / f"{LOG}.log"
    path.write_text("".join(f"{n} {'x' * 5000}\n" for n in range(900)))
    found = answer(await reader.call_tool("logs", {"job": "desk", "tail": 1000}))
    assert found["lines"][-1]["text"].startswith("899 ")
    assert len(found["lines"]) < 20
    assert any("earlier lines were left out; write a role" in each for each in found["notes"])
    assert any(f"is cut: {jobs.MAX_LINE} of 5004 characters" in each for each in found["notes"])


async def test_episodes_come_page_by_page(reader: InProcess) -> None:
    asked: Json = {"job": "good", "step": 1, "limit": 3}
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        found = answer(await reader.call_tool("trajectories", {**asked, "offset": offset}))
        seen += [each["episode"] for each in found["episodes"]]
        offset = found["next"]
    assert len(seen) == len(set(seen)) == 8
    assert found["purpose"] == "train"


async def test_episodes_that_disagree_come_furthest_apart_first(reader: InProcess) -> None:
    found = answer(await reader.call_tool("trajectories", {"job": "good", "disagree": True, "limit": 20}))
    gaps = [abs(each["reward"] - each["score"]) for each in found["episodes"]]
    assert gaps == sorted(gaps, reverse=True)
    assert min(gaps) > 0


async def test_failed_episodes_are_those_that_ended_with_an_error(project: Path, reader: InProcess) -> None:
    job_with_tasks.written(project / ".headway/tasks", project)

    async def failed(**more: Any) -> list[tuple[str, str]]:
        asked = {"job": "tasks", "failed": True, "limit": 20, **more}
        found = answer(await reader.call_tool("trajectories", asked))
        return [(each["group"], each["outcome"]) for each in found["episodes"]]

    assert await failed() == [("t0-000001", "InfraError"), ("t0-000002", "AgentError")]
    assert await failed(task="refund") == [("t0-000002", "AgentError")]
    assert await failed(purpose="validation") == [("v000000-000001", "InfraError")], "lost as a whole"


async def test_failed_and_outcome_exclude_each_other(reader: InProcess) -> None:
    asked: Json = {"job": "good", "failed": True, "outcome": "Completed"}
    assert "failed: write failed or outcome, not both" in str(await reader.call_tool("trajectories", asked))


async def test_episodes_of_a_task_are_on_its_rows(project: Path, reader: InProcess) -> None:
    job_with_tasks.written(project / ".headway/tasks", project)
    found = answer(await reader.call_tool("trajectories", {"job": "tasks", "task": "change"}))
    assert {each["group"] for each in found["episodes"]} == {"t0-000001"}
    wrong = await reader.call_tool("trajectories", {"job": "tasks", "task": "refunds"})
    assert "task refunds: " in str(wrong)
    assert "did you mean refund?" in str(wrong)


async def test_a_task_of_a_job_without_tasks_is_refused(reader: InProcess) -> None:
    found = await reader.call_tool("trajectories", {"job": "good", "task": "refunds"})
    assert "task refunds: " in str(found)
    assert "--task" not in str(found)


async def test_an_answer_without_a_matching_episode_is_noted(reader: InProcess) -> None:
    found = answer(await reader.call_tool("trajectories", {"job": "good", "step": 99}))
    assert (found["episodes"], found["next"]) == ([], None)
    assert found["notes"] == ["no episode of train matches"]


def hostile(project: Path, content: str) -> None:
    """A project in which one episode of `good` contains a hostile text."""
    folder = project / ".headway/good/artifacts/team/good/0f0e0d0c-1111-4222-8333-444455556666"
    path = sorted((folder / "trajectories/train").glob("*.json.gz"))[0]
    group = GroupRecord.model_validate_json(gzip.decompress(path.read_bytes()))
    first = group.episodes[0].model_copy(
        update={"messages": [{"role": "assistant", "content": content}, {"role": content, content: content}]}
    )
    path.unlink()
    made = group.model_copy(update={"episodes": [first, *group.episodes[1:]]})
    FileStore().put(f"file://{path}", encode(made))


async def test_hostile_text_stays_in_its_field(reader: InProcess, project: Path) -> None:
    hostile(project, INJECTION)
    found = answer(await reader.call_tool("trajectories", {"job": "good", "limit": 1}))
    first = found["episodes"][0]
    assert first["messages"][0] == {"role": "assistant", "content": INJECTION}
    assert found["next"] == 1
    assert set(found) == {"job", "kind", "at", "purpose", "episodes", "next", "notes", "cut"}


async def test_a_long_message_is_cut_and_its_place_is_noted(reader: InProcess, project: Path) -> None:
    hostile(project, "y" * 90_000)
    found = answer(await reader.call_tool("trajectories", {"job": "good", "limit": 1, "characters": 100}))
    assert found["episodes"][0]["messages"][0]["content"] == "y" * 100
    assert found["notes"][0] == (
        "cut: episodes/0/messages/0/content: 100 of 90000 characters; write more characters"
    )


@pytest.mark.parametrize("content", ["y" * 90_000, "\n\x00\u2028" * 20_000, "\ud800" * 50_000])
async def test_an_answer_has_its_bound(reader: InProcess, project: Path, content: str) -> None:
    hostile(project, content.encode(errors="replace").decode())
    for limit in (1, 20):
        asked = {"job": "good", "limit": limit, "characters": 20_000}
        result = await reader.call_tool("trajectories", asked)
        assert answer(result)["episodes"]
        assert len(text(result)) <= bounds.MAX_CHARACTERS


async def test_a_bill_equals_that_of_headway_cost(reader: InProcess) -> None:
    found = answer(await reader.call_tool("cost", {"job": "desk"}))
    assert {each["class"] for each in found["used"]} >= {"train", "sample"}
    assert float(found["cost"]) >= 0


async def test_metrics_are_chosen_by_pattern(reader: InProcess) -> None:
    asked = {"job": "good", "figures": ["training/ent*", "rollout/reward/mean"], "last": 2}
    found = answer(await reader.call_tool("report", asked))
    assert found["steps"] == [STEPS - 1, STEPS]
    assert set(found["figures"]) == {"training/entropy", "rollout/reward/mean"}
    assert all(len(of) == 2 for of in found["figures"].values())
    assert [each["step"] for each in found["validations"]] == [4, 6]
    assert "training/entropy" in found["known"]
    assert found["notes"] == [f"{STEPS - 2} earlier steps are left out; write a higher last"]


async def test_an_unknown_metric_suggests_similar_names(reader: InProcess) -> None:
    message = error(await reader.call_tool("report", {"job": "good", "figures": ["training/entropi"]}))
    assert message.startswith(
        "figures: this run has no metric training/entropi; did you mean training/entropy"
    )


async def test_an_evaluation_answers_its_report(reader: InProcess) -> None:
    found = answer(await reader.call_tool("report", {"job": "judged"}))
    assert found["report"]["gate"] == {"result": "Passed"}


async def test_an_evaluation_has_no_steps(reader: InProcess) -> None:
    message = error(await reader.call_tool("timeline", {"job": "judged"}))
    assert message == "job: judged is an evaluation, and has no steps: name a training job"
    message = error(await reader.call_tool("compare", {"jobs": ["good", "judged"]}))
    assert message == "jobs: judged is an evaluation, and has no steps: name training jobs"


async def test_runs_are_compared(reader: InProcess) -> None:
    found = answer(await reader.call_tool("compare", {"jobs": ["good", "bad"], "points": 3}))
    assert [each["run"] for each in found["outcomes"]] == ["good", "bad"]
    curves = {each["title"]: each["points"] for each in found["curves"]}
    steps = [step for step, _ in curves["Training reward"]["bad"]]
    assert len(steps) == 3
    assert (steps[0], steps[-1]) == (1, STEPS)
    assert error(await reader.call_tool("compare", {"jobs": ["good", "good"]})) == (
        "jobs: good is named twice: name different runs"
    )


async def test_seconds_of_steps_are_in_the_answer(reader: InProcess) -> None:
    found = answer(await reader.call_tool("timeline", {"job": "good", "steps": [2]}))
    assert any(each["step"] == 2 and each["seconds"] == 12 for each in found["steps"])
    assert error(await reader.call_tool("timeline", {"job": "good", "steps": [99]})).startswith(
        "steps: the run has no step 99"
    )
    every = [*range(2, 7)]
    found = answer(await reader.call_tool("timeline", {"job": "good", "steps": every}))
    assert [each["step"] for each in found["steps"]] == every


async def test_artifacts_of_a_run_are_listed(reader: InProcess) -> None:
    found = answer(await reader.call_tool("artifacts", {"job": "desk"}))
    assert (found["best"], found["latest"]) == (2, 4)
    assert [each["step"] for each in found["weights"]] == [0, 2, 4]


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("status", {}, "job is missing: write it"),
        ("status", {"job": ""}, "job is"),
        ("status", {"job": "   "}, "job: write a name; call jobs"),
        ("status", {"job": ["desk"]}, "job is a list: write text"),
        ("logs", {"job": "desk", "tail": 0}, "tail is 0: write 1 or more"),
        ("logs", {"job": "desk", "tail": 10**9}, "tail is"),
        ("logs", {"job": "desk", "role": "root"}, 'role is "root": write coordinator, '),
        ("trajectories", {"job": "desk", "limt": 1}, "limt: there is no such field; did you mean limit?"),
        ("trajectories", {"job": "desk", "outcome": "Won"}, "outcome is"),
        ("compare", {"jobs": ["good"]}, "jobs has"),
        ("compare", {"jobs": ["good"] * 9}, "jobs has"),
        ("estimate", {"file": "absent.yaml"}, "file: absent.yaml does not exist: name a file inside "),
        ("estimate", {"file": "/etc/passwd"}, "file: /etc/passwd is outside of "),
        ("estimate", {"file": "../../etc/passwd"}, "file: ../../etc/passwd is outside of "),
        (
            "status",
            {"job": "s3://another/run"},
            "job: s3://another/run is not an address that this server reads",
        ),
        ("cost", {"job": "/"}, "job: / is outside of "),
        ("artifacts", {"job": "file:///etc"}, "job: /etc is outside of "),
        ("status", {"job": "../.."}, "job: "),
        ("status", {"job": "No/Such"}, "No/Such does not exist: name the folder of a local job"),
        ("status", {"job": "a\x00b"}, "a\x00b does not exist: "),
        ("status", {"job": "x" * 300}, "job: "),
        ("estimate", {"file": "a\x00b"}, "file: "),
        ("estimate", {"file": "x" * 300}, "file: "),
        ("estimate", {"file": "."}, "file: . does not exist: name a file inside "),
        ("estimate", {"file": "job.yaml", "set": ["x" * 2000]}, "set.0 is"),
        ("status", {"job": "good", "kind": "eval"}, "kind: good is an RLTrainingJob: leave kind out"),
    ],
)
async def test_a_wrong_argument_is_named(reader: InProcess, tool: str, arguments: Json, says: str) -> None:
    message = error(await reader.call_tool(tool, arguments))
    assert message.startswith(says), message


async def test_a_job_that_is_not_there_has_near_names(reader: InProcess) -> None:
    message = error(await reader.call_tool("logs", {"job": "goud"}))
    assert "has no job goud; did you mean good?" in message


async def test_a_tool_that_is_not_there_has_near_names(reader: InProcess) -> None:
    with pytest.raises(MCPError, match="there is no tool 'trajectory'; did you mean trajectories"):
        await reader.call_tool("trajectory", {})


async def test_a_reader_lists_no_tool_that_changes_and_refuses_it(reader: InProcess) -> None:
    listed = {each.name for each in await reader.tools()}
    changing = {tool.name for tool in catalogue.TOOLS if tool.change is not None}
    assert changing == {"check", "submit", "suspend", "resume", "eval"}
    assert not listed & changing
    for name in changing:
        message = error(await reader.call_tool(name, {"job": "desk", "file": "x"}))
        assert message.startswith(f"{name} is not offered here"), message
        assert "--allow-changes" in message


async def test_an_internal_error_shows_no_traceback(
    reader: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> Json:
        raise RuntimeError("secret")

    monkeypatch.setattr(jobs.progress, "line", fails)
    message = error(await reader.call_tool("status", {"job": "desk"}))
    assert message == "status failed inside Headway; the server's standard error shows where"
    assert "secret" in caplog.text


async def test_a_store_that_is_allowed_is_read_by_address(project: Path) -> None:
    elsewhere = project.parent / f"{project.name}-store"
    uri = f"file://{elsewhere}/run"
    FileStore().put(
        f"{uri}/job.json", json.dumps({"kind": "RLTrainingJob", "name": "kept", "spec": {}}).encode()
    )
    client = InProcess(Workspace(project))
    assert "is outside of" in error(await client.call_tool("artifacts", {"job": uri}))
    client = InProcess(Workspace(project, stores=(f"file://{elsewhere}",)))
    found = answer(await client.call_tool("artifacts", {"job": uri}))
    assert found["uri"] == uri
    assert "has no status: call report" in error(await client.call_tool("status", {"job": uri}))
    assert error(await client.call_tool("artifacts", {"job": f"{uri}/../../{project.name}"}))


async def test_a_folder_that_links_elsewhere_is_outside(project: Path) -> None:
    (project / "out").symlink_to("/")
    client = InProcess(Workspace(project))
    assert "is outside of" in error(await client.call_tool("estimate", {"file": "out/etc/passwd"}))
    assert "is outside of" in error(await client.call_tool("cost", {"job": "out"}))


async def test_a_job_on_the_cluster_is_read_by_its_name(stub: StubCluster, project: Path) -> None:
    client = InProcess(Workspace(project))
    listed = answer(await client.call_tool("jobs", {}))["jobs"]
    assert {each["job"]: each["at"] for each in listed}["far"] == "namespace team of context stub"
    assert answer(await client.call_tool("status", {"job": "far"}))["status"]["state"] == "Running"
    assert answer(await client.call_tool("cost", {"job": "far"}))["cost"] == "0.50"
    lines = answer(await client.call_tool("logs", {"job": "far", "tail": 1}))["lines"]
    assert lines == [{"writer": "far-learner-0", "text": "far 8"}]
    episodes = answer(await client.call_tool("trajectories", {"job": "far", "limit": 1}))["episodes"]
    assert len(episodes) == 1
    message = error(await client.call_tool("status", {"job": "fur"}))
    assert "namespace team has no RLTrainingJob fur; did you mean far?" in message


async def test_with_a_namespace_names_are_of_the_cluster_alone(stub: StubCluster, project: Path) -> None:
    client = InProcess(Workspace(project, namespace="team"))
    found = answer(await client.call_tool("jobs", {}))
    assert [each["job"] for each in found["jobs"]] == ["far"]
    assert "namespace team has no RLTrainingJob good" in error(
        await client.call_tool("status", {"job": "good"})
    )


async def test_an_unavailable_cluster_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CALL_SECONDS", 1)
    with stub_cluster.served(StubCluster(), project) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    client = InProcess(Workspace(project))
    found = answer(await client.call_tool("jobs", {}))
    assert len(found["jobs"]) == 4
    assert "does not answer" in found["notes"][0]


async def test_a_changer_suspends_and_resumes(changer: InProcess, stub: StubCluster) -> None:
    assert answer(await changer.call_tool("suspend", {"job": "far"}))["suspend"] is True
    assert stub.applied[-1] == {"spec": {"suspend": True}}
    assert answer(await changer.call_tool("resume", {"job": "far"}))["suspend"] is False
    assert stub.applied[-1] == {"spec": {"suspend": False}}


async def test_a_local_job_is_suspended_and_its_terminal_resumes_it(
    changer: InProcess, project: Path
) -> None:
    assert answer(await changer.call_tool("suspend", {"job": "good"}))["suspend"] is True
    stored = json.loads((project / ".headway/good/job.json").read_text())
    assert stored["spec"]["suspend"] is True
    message = error(await changer.call_tool("resume", {"job": "good"}))
    assert "`headway run FILE --local --resume`" in message


def job_file(project: Path, namespace: str | None = None) -> None:
    """The example's job, in a namespace."""
    job = yaml.safe_load(JOB.read_text())
    job["metadata"] = {"name": "sop", **({} if namespace is None else {"namespace": namespace})}
    (project / "job.yaml").write_text(yaml.safe_dump(job))


async def test_a_job_is_submitted_from_a_file(changer: InProcess, stub: StubCluster, project: Path) -> None:
    job_file(project)
    asked = {"file": "job.yaml", "set": ["spec.schedule.maxSteps=3"]}
    found = answer(await changer.call_tool("submit", asked))
    assert found["at"] == "namespace team of context stub"
    assert stub.applied[-1]["spec"]["schedule"]["maxSteps"] == 3


@pytest.mark.parametrize(
    ("namespace", "setting", "says"),
    [
        (
            "another",
            "spec.seed=1",
            "metadata.namespace is another, and this server changes only jobs of team",
        ),
        (None, "spec.schedul.maxSteps=3", "spec.schedul: there is no such field; did you mean schedule?"),
        (None, "maxSteps=3", "--set maxSteps=3: write spec.FIELD=VALUE"),
    ],
)
async def test_a_wrong_job_is_not_submitted(
    changer: InProcess, stub: StubCluster, project: Path, namespace: str | None, setting: str, says: str
) -> None:
    job_file(project, namespace)
    message = error(await changer.call_tool("submit", {"file": "job.yaml", "set": [setting]}))
    assert message.startswith(says), message
    assert stub.applied == []


async def test_an_evaluation_is_made_of_options(changer: InProcess, stub: StubCluster, project: Path) -> None:
    job_file(project, "team")
    found = answer(await changer.call_tool("eval", {"from": "job.yaml", "max_rows": 8, "name": "again"}))
    assert (found["job"], found["kind"]) == ("again", "RLEvalJob")
    assert stub.applied[-1]["spec"]["evaluation"]["maxRows"] == 8
    assert yaml.safe_load(found["manifest"])["metadata"]["name"] == "again"
    assert "--candidate" in error(await changer.call_tool("eval", {"from": "job.yaml", "candidates": ["x"]}))


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        ("spec.output.endpointUrl=http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("spec.data={train: {uri: file:///etc/passwd}}", "file:///etc/passwd"),
        ("spec.suites=[{name: a, image: s3://a/b}]", "s3://a/b"),
    ],
)
async def test_a_reader_contacts_only_addresses_of_the_file(
    reader: InProcess, changer: InProcess, project: Path, setting: str, address: str
) -> None:
    job_file(project)
    asked = {"file": "job.yaml", "set": [setting]}
    message = error(await reader.call_tool("estimate", asked))
    assert message == f"set: {address} is not in the file: a person must write it there"
    assert "is not in the file" not in error(await changer.call_tool("estimate", asked))


async def test_a_reader_runs_no_code_of_the_project(
    reader: InProcess, changer: InProcess, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file(project)
    called: list[list[str]] = []

    def output(words: list[str], seconds: float) -> str:
        called.append(words)
        return "{}"

    monkeypatch.setattr(verb, "output", output)
    asked = {"file": "job.yaml", "set": ["spec.seed=1"]}
    answer(await reader.call_tool("estimate", asked))
    answer(await changer.call_tool("estimate", asked))
    file = str(project / "job.yaml")
    kept = ["--set=spec.seed=1", "--", file]
    assert called[0] == ["estimate", "--output=json", "--no-episode", *kept]
    assert called[1] == ["estimate", "--output=json", "--episode", *kept]


async def test_each_tool_declares_its_effects(changer: InProcess, reader: InProcess) -> None:
    reads = {each.name: each.annotations for each in await reader.tools()}
    assert all(of is not None and of.read_only_hint and not of.destructive_hint for of in reads.values())
    all_of = {each.name: each.annotations for each in await changer.tools()}
    assert {name for name, of in all_of.items() if of is not None and not of.read_only_hint} == {
        "estimate", "check", "submit", "suspend", "resume", "eval",
    }  # fmt: skip
    assert {name for name, of in all_of.items() if of is not None and of.destructive_hint} == {
        "check", "submit", "suspend", "eval",
    }  # fmt: skip


async def test_every_argument_is_described(changer: InProcess) -> None:
    for tool in await changer.tools():
        assert tool.description
        assert tool.input_schema["additionalProperties"] is False
        for name, of in tool.input_schema["properties"].items():
            assert of.get("description"), f"{tool.name}.{name}"


async def test_text_of_strangers_is_called_untrusted(reader: InProcess) -> None:
    for tool in await reader.tools():
        if tool.name in ("logs", "trajectories"):
            assert "untrusted" in (tool.description or "")
