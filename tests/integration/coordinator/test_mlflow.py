"""A job's metrics in a real MLflow server, compared with a recount that shares no code with them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_servers import broker, sandbox, serving, weight_agent
from job_rig import publishing
from mlflow import MlflowClient
from mlflow_server import mlflow_server
from played_jobs import Story, a_spec, acting
from ports import free_port
from recounted_episodes import KINDS, REASONS, by_task, read, recounted, same, scored, spread, validated
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import ANSWER, CALL, job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_analysis.remedies.policy import decide
from headway_api.artifacts import Layout
from headway_api.remedies import applied
from headway_api.signals import STATE_VALUES, SignalName
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.metrics.mlflow import About, connect
from headway_coordinator.metrics.parameters import parameters
from headway_coordinator.remedies import shown
from headway_coordinator.status import JobUpdate

BROKEN = "<tool_call>\nlook_up x\n</tool_call><|im_end|>"
CUT = "It is gold, and then"
MAX_TURNS = 3
pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]
SPLITS = ("train", "validation", "test")
KS = (1, 2)
THRESHOLD = 0.75


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of this module's own tracking server."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


class Rig:
    """One job over scripted servers. Several coordinators run it one after another."""

    def __init__(self, folder: Path, tracking: str, order: str | None = None) -> None:
        self.folder = folder
        self.order = order
        self.store = FileStore()
        self.config = job(
            folder,
            data={name: {"uri": f"file://{folder}/{name}.jsonl", "taskColumn": "task"} for name in SPLITS},
            agent={"builtin": {"maxTurns": MAX_TURNS}},
            evaluation={
                "groupSize": 3,
                "sampling": {"temperature": 1.0},
                "passK": list(KS),
                "successThreshold": THRESHOLD,
                "everySteps": 1,
            },
            tracking={"mlflow": {"uri": tracking} | ({"experiment": order} if order else {})},
        )
        if order is not None:  # a trace's id is made of the job's uid, and one server has both jobs
            self.config = self.config.model_copy(update={"uid": "uid-ordered"})
        rows = [{"prompt": f"test {row}", "task": task_of(row)} for row in range(4)]
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.status: list[dict[str, Any]] = []
        spoken = itertools.cycle([(CALL, "stop"), (ANSWER, "stop"), (BROKEN, "stop"), (CALL, "stop")])
        ends = itertools.cycle([(ANSWER, "stop"), (CUT, "length"), (CALL, "stop")])
        judged = itertools.cycle([(1.0, 0.0), (0.5, 1.0), (1.0, 1.0), (0.0, 0.0), (0.75, 0.5)])
        self.speak = lambda prompt: next(ends if "tool_response" in prompt else spoken)
        self.box = sandbox()
        contents = itertools.cycle(["gold", "error: no such key"])
        self.box.answers = {
            **self.box.answers,
            "POST /tool": lambda _: {"content": next(contents), "done": False},
            "POST /finish": lambda _: verdict(*next(judged)),
        }

    def sink(self, status: dict[str, Any]) -> JobUpdate:
        """Stands for the API server: it keeps the status, and returns a person's order."""
        self.status.append(status)
        return JobUpdate(remedy=self.order)

    async def live(self, steps: int | None) -> None:
        """Run one coordinator until the job's end, or until the learner has completed so many steps."""
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(serving(speaking_engine(self.folder, self.speak)))
            agent = await stack.enter_async_context(serving(weight_agent()))
            box = await stack.enter_async_context(serving(self.box))
            leases = await stack.enter_async_context(serving(broker(box.url)))

            async def discover() -> set[Endpoint]:
                return {Endpoint(engine.url, agent.url)}

            port = free_port()
            coordinator = Coordinator(
                self.config,
                KEYS,
                self.store,
                self.folder / "cache",
                self.sink,
                broker_url=leases.url,
                discover=discover,
                port=port,
            )
            self.layout = coordinator.layout
            publish = publishing(self.store, self.layout)
            learner = ScriptedLearner(
                f"http://127.0.0.1:{port}", TO_COORDINATOR, self.store, self.layout, publish
            )
            async with asyncio.timeout(120):
                running = asyncio.create_task(coordinator.run())
                await until_ready(running, port)
                await learner.run(steps)
                if steps is not None:
                    # Validations run beside training. Until this one is recorded, its traces may be missing.
                    while self.layout.validation(0) not in self.store.list(self.layout.validations):
                        await asyncio.sleep(0.05)
                    running.cancel()
                await asyncio.gather(running, return_exceptions=steps is not None)


def verdict(reward: float, score: float) -> dict[str, Any]:
    return {"reward": reward, "score": score, "metrics": {"field_acc": reward / 2, "completion": 1.0}}


@pytest.fixture(scope="module")
def done(server: str, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A job that ended. Its coordinator was started again after the first step and after the end."""
    rig = Rig(tmp_path_factory.mktemp("job"), server)
    for steps in (1, None, None):
        asyncio.run(rig.live(steps))
    return rig


def tracked(rig: Rig, server: str) -> tuple[MlflowClient, Any]:
    client = MlflowClient(tracking_uri=server)
    return client, client.get_run(rig.status[-1]["tracking"]["mlflow"]["runId"])


def history(client: MlflowClient, run: Any) -> dict[int, dict[str, float]]:
    """Step -> name -> value. Asserts that each value was logged once."""
    found: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, name)
        assert len(points) == len({point.step for point in points}), f"{name} was logged twice"
        for point in points:
            found.setdefault(point.step, {})[name] = point.value
    return found


def test_a_run_has_the_tags_and_parameters_of_its_job(done: Rig, server: str) -> None:
    client, run = tracked(done, server)
    assert run.info.run_name == "job-uid"
    assert client.get_experiment(run.info.experiment_id).name == "ns/job"
    tags = {name: run.data.tags[f"headway.dev/{name}"] for name in ("job", "namespace", "uid", "kind")}
    assert tags == {"job": "job", "namespace": "ns", "uid": "uid", "kind": "RLTrainingJob"}
    expected = {
        "global_batch_size": "2",
        "group_size": "2",
        "loss_fn": "ppo",
        "clip_low_threshold": "0.8",
        "learning_rate": "4e-05",
        "lora_rank": "32",
        "pass_k_values": "1,2",
        "success_threshold": "0.75",
        "max_turns": "3",
        "spec.algorithm.groupSize": "2",
        "spec.evaluation.passK": "[1, 2]",
        "spec.agent.builtin.maxTurns": "3",
    }
    assert {name: run.data.params.get(name) for name in expected} == expected
    assert run.info.status == "FINISHED"


def test_each_change_of_the_running_job_is_a_tag_of_the_run(tmp_path: Path, server: str) -> None:
    story = Story(acting(a_spec(), remedies=("LowerLearningRate",)))
    story.train(30, 0.6).train(10, 0.02).raise_(SignalName.REWARD_COLLAPSED)
    story.carry_out(decide(story.now())).train(2, 0.6)
    layout = Layout(f"file://{tmp_path}", "ns", "changed", "uid")
    tracker = connect(server, FileStore(), layout, "ns/changed", About("changed", parameters(story.spec), {}))
    tracker.start()
    course = story.now().course
    tracker.tag(shown.tags(course, story.spec, applied(story.spec, course.entries[-1].decision.in_force)))
    tracker.close()
    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("ns/changed")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    tags = {name: value for name, value in run.data.tags.items() if name.startswith("headway.dev/")}
    assert tags == {
        "headway.dev/remedy/000001": "step 41: LowerLearningRate (RewardCollapsed): "
        "learningRate 4e-05 -> 1.3e-05: Watching",
        "headway.dev/now/learning_rate": "1.3e-05",
        "headway.dev/now/spec.optimizer.learningRate": "1.3e-05",
    }
    assert run.data.params["learning_rate"] == "4e-05", "what the job was given stays"


class UnkeptIds(FileStore):
    """A store that refuses all writes, as if its process had ended before it kept the run's id."""

    def put(self, uri: str, data: bytes) -> None:
        raise ConnectionError(uri)


def test_a_crash_before_the_id_is_kept_makes_no_second_run(tmp_path: Path, server: str) -> None:
    client, layout = MlflowClient(tracking_uri=server), Layout(f"file://{tmp_path}", "ns", "crashed", "uid")
    experiment = client.create_experiment("ns/crashed")
    client.create_run(experiment, tags={"headway.dev/uid": "of another job"})
    for step, store in enumerate((UnkeptIds(), FileStore(), FileStore()), 1):
        about = About("crashed", {}, {"headway.dev/uid": "crashed"})
        tracker = connect(server, store, layout, "ns/crashed", about)
        tracker.start()
        tracker.log({"a": float(step)}, step, at_ms=step)
        tracker.close()
    runs = client.search_runs([experiment])
    mine = [run for run in runs if run.data.tags["headway.dev/uid"] == "crashed"]
    assert (len(mine), len(runs)) == (1, 2)
    points = client.get_metric_history(mine[0].info.run_id, "a")
    assert [point.step for point in points] == [2, 3]


def test_a_running_job_logs_signals_and_a_change_to_its_run(tmp_path: Path, server: str) -> None:
    rig = Rig(tmp_path, server, order="LowerLearningRate")
    asyncio.run(rig.live(steps=None))
    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("LowerLearningRate")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.data.tags["headway.dev/remedy/000001"] == (
        "step 1: LowerLearningRate (ordered: LowerLearningRate): learningRate 4e-05 -> 1.3e-05: Watching"
    )
    assert run.data.tags["headway.dev/now/learning_rate"] == "1.3e-05"
    known = {each["name"]: each["state"] for each in rig.status[-1]["signals"] if each["state"] != "Unknown"}
    assert "NothingToTrain" in known
    logged = history(client, run)[2]
    states = {name: value for name, value in logged.items() if name.startswith("signal/state/")}
    assert states == {f"signal/state/{name}": STATE_VALUES[state] for name, state in known.items()}


def test_the_status_links_to_the_run(done: Rig, server: str) -> None:
    _, run = tracked(done, server)
    link = done.status[-1]["tracking"]["mlflow"]
    page, _, place = link["url"].partition("#")
    assert place == f"/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert answer.status == 200


def test_the_run_holds_the_jobs_files(done: Rig, server: str, tmp_path: Path) -> None:
    client, run = tracked(done, server)
    named = {
        "report.html": done.layout.page,
        "report.json": done.layout.report,
        "job.json": done.layout.job,
    }
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == named.keys()
    for name, uri in named.items():
        fetched = Path(client.download_artifacts(run.info.run_id, name, str(tmp_path)))
        assert fetched.read_bytes() == done.store.get(uri)


def traced(done: Rig, server: str) -> dict[str, Any]:
    """The traces of the run by episode. Asserts that each was sent once."""
    client, run = tracked(done, server)
    listed = client.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id, max_results=500)
    found = {str(trace.info.client_request_id): trace for trace in listed}
    assert len(found) == len(listed)
    return found


def test_episodes_of_validations_and_of_every_step_are_traces(done: Rig, server: str) -> None:
    held_out = {
        str(step): {e["episode_id"] for g in read(done.layout.validation_groups(step)) for e in g["episodes"]}
        for step in (0, 1, 2)
    }
    found = traced(done, server)
    places = [
        (each.info.tags["headway.dev/purpose"], each.info.tags["headway.dev/step"], name)
        for name, each in found.items()
    ]
    assert {
        step: {name for purpose, at, name in places if (purpose, at) == ("validation", step)}
        for step in held_out
    } == held_out
    for step in (1, 2):
        report = json.loads(done.store.get(done.layout.step_history(step)))
        trained = [name for purpose, at, name in places if (purpose, at) == ("train", str(step))]
        assert {name.rsplit("-", 2)[0] for name in trained} == set(report["groups"]), "a batch has two groups"
    assert len(found) == sum(map(len, held_out.values())) + sum(each[0] == "train" for each in places)


def test_a_trace_has_inputs_and_outputs_of_turns_and_tools(done: Rig, server: str) -> None:
    stored = {
        e["episode_id"]: e
        for folder in (done.layout.train_groups, *map(done.layout.validation_groups, (0, 1, 2)))
        for g in read(folder)
        for e in g["episodes"]
    }
    heard = Counter[str]()
    for name, trace in traced(done, server).items():
        episode, spans = stored[name], trace.data.spans
        [root] = [span for span in spans if span.parent_id is None]
        assert root.inputs["messages"][-1]["content"] == "Look up brave-otter."
        assert root.outputs["reward"] == episode["reward"]
        turns = sorted((s for s in spans if s.span_type == "CHAT_MODEL"), key=lambda s: s.start_time_ns)
        tools = sorted((s for s in spans if s.span_type == "TOOL"), key=lambda s: s.start_time_ns)
        assert len(turns) == len(episode["turns"])
        assert len(spans) == 1 + len(turns) + len(tools)
        replies = [message for message in episode["messages"] if message["role"] == "assistant"]
        assert [turn.outputs["content"] for turn in turns] == [message["content"] for message in replies]
        assert all(turn.inputs["messages"] for turn in turns)
        made = [call for message in replies for call in message.get("tool_calls") or []]
        calls = [call["function"] for call in made]
        assert [(tool.name, tool.inputs) for tool in tools] == [
            (call["name"], json.loads(call["arguments"])) for call in calls
        ]
        known = {call["id"] for call in made}  # a malformed call has an answer and no span
        answers = [m["content"] for m in episode["messages"] if m.get("tool_call_id") in known]
        assert [tool.outputs for tool in tools if tool.outputs is not None] == answers
        heard.update(answers)
    assert heard.keys() == {"gold", "error: no such key"}, "both of the script's answers were heard"


def test_an_unavailable_mlflow_server_does_not_affect_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    rig = Rig(tmp_path, f"http://127.0.0.1:{free_port()}")
    with caplog.at_level(logging.WARNING):
        asyncio.run(rig.live(steps=None))
    assert json.loads(rig.store.get(rig.layout.report))["finished"] == "MaxSteps"
    assert rig.status[-1]["artifacts"]["page"] == rig.layout.page
    assert "tracking" not in rig.status[-1]
    assert "mlflow-failed" in {each.message for each in caplog.records}


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_validation_in_mlflow_is_what_its_episodes_say(done: Rig, server: str, step: int) -> None:
    found = {
        name: value
        for name, value in history(*tracked(done, server))[step].items()
        if name.startswith("val/")
    }
    groups = read(done.layout.validation_groups(step))
    assert len(groups) == 4
    same(found, evaluated(groups, "val"))


@pytest.mark.parametrize("step", [1, 2])
def test_a_batch_in_mlflow_is_what_its_episodes_say(done: Rig, server: str, step: int) -> None:
    logged = history(*tracked(done, server))[step]
    report = json.loads(done.store.get(done.layout.step_history(step)))
    spooled = {group["group_id"]: group for group in read(done.layout.train_groups)}
    groups = [spooled[name] for name in report["groups"]]
    trained = [g for g in groups if report["train_tokens"][g["group_id"]]]
    expected = recounted(groups, "rollout", "episodes", MAX_TURNS)
    valid = [e["reward"] for e in scored(trained)]
    expected["rollout/reward/valid_mean"] = float(np.mean(valid)) if valid else 0.0
    expected |= spread("rollout/external_score/", [e["score"] for e in scored(groups)])
    for task in {task_of(group["row"]) for group in groups}:
        members = [group for group in groups if task_of(group["row"]) == task]
        expected[f"rollout/task_groups/{task}"] = len(members)
        expected[f"rollout/task_reward/{task}"] = float(np.mean([e["reward"] for e in scored(members)]))
    prefixes = ("rollout/", "episodes/")
    same({name: value for name, value in logged.items() if name.startswith(prefixes)}, expected)
    assert logged["training/global_step"] == step
    assert logged["analysis/batch_completion_ratio"] == 1.0, "the environment's own word"
    assert logged["analysis/batch_valid_ratio"] == len(trained) / len(groups)


def test_mlflow_test_split_metrics_match_their_episodes(done: Rig, server: str) -> None:
    tuned = max(step for step in range(3) if read(done.layout.evaluation_groups(f"step-{step}")))
    assert tuned > 0, "weights beside the untrained ones"
    logged = history(*tracked(done, server))[tuned]
    groups, base = (read(done.layout.evaluation_groups(f"step-{step}")) for step in (tuned, 0))
    assert len(groups) == len(base) == 4
    expected = evaluated(groups, "test")
    for measure, key in (("reward", "reward"), ("external_score", "score")):
        ours, theirs = (float(np.mean([e[key] for e in scored(of)])) for of in (groups, base))
        expected[f"test/base/{measure}"] = theirs
        expected[f"test/difference/{measure}"] = ours - theirs
    same({name: value for name, value in logged.items() if name.startswith("test/")}, expected)


def evaluated(groups: list[dict[str, Any]], prefix: str) -> dict[str, float]:
    """All metrics that an evaluation logs under a prefix."""
    return (
        recounted(groups, prefix, f"{prefix}/episodes", MAX_TURNS)
        | validated(groups, prefix, KS, THRESHOLD)
        | by_task(groups, prefix, task_of, THRESHOLD)
    )


def task_of(row: int) -> str:
    """The task of a row of any split."""
    return "odd" if row % 2 else "even"


def test_the_script_shows_everything_that_is_recounted(done: Rig) -> None:
    """A metric that is always 0 would equal any wrong recount of it."""
    expected = [
        recounted(read(done.layout.validation_groups(step)), "val", "val/episodes", MAX_TURNS)
        for step in (0, 1, 2)
    ]
    zero = {name for name in expected[0] if not any(found[name] for found in expected)}
    assert {name for name in zero if "logprob/zero" not in name} == {
        "val/logprob/nz_std",
        "val/turns/guided_share",
        "val/turns/fork_rate",
        "val/episodes/fork_rate",
        *(f"val/forks_of/{why}" for why in REASONS),
        *(f"val/rows/{share}" for share in ("branch_share", "branch_token_share", "repeated_share")),
        *(f"val/tool_calls/malformed_share_of/{kind}" for kind in KINDS if kind != "not_json"),
        "val/reward/min",
        "val/repetition/mean",
        "val/repetition/max",
        "val/episodes/context_limit_rate",
        "val/episodes/time_limit_rate",
        "val/episodes/episode_token_limit_rate",
        "val/episodes/outcome_AgentError_rate",
        "val/episodes/outcome_InfraError_rate",
    }
