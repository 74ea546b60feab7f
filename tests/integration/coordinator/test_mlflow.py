"""What a job leaves in a real MLflow server, against a recount that shares no code with the figures."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from a_job import publishing
from faulty_servers import broker, sandbox, serving, weight_agent
from mlflow import MlflowClient
from mlflow_server import mlflow_server
from played_jobs import Story, a_spec, acting
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_learner import ScriptedLearner
from speaking_job import ANSWER, CALL, job, speaking_engine, until_ready

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
from headway_coordinator.status import Heard

BROKEN = "<tool_call>\nlook_up x\n</tool_call><|im_end|>"
CUT = "It is gold, and then"
MAX_TURNS = 3
KS = (1, 2)
THRESHOLD = 0.75


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracking server of this module's own."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


class Rig:
    """One job over scripted servers, of which coordinators live one after another."""

    def __init__(self, folder: Path, tracking: str, order: str | None = None) -> None:
        self.folder = folder
        self.order = order
        self.store = FileStore()
        self.config = job(
            folder,
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

    def sink(self, status: dict[str, Any]) -> Heard:
        """The API server: it keeps the status, and has a person's order on the job."""
        self.status.append(status)
        return Heard(remedy=self.order)

    async def live(self, steps: int | None) -> None:
        """One coordinator's life: until the job's end, or until the learner took so many steps."""
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
                    running.cancel()
                await asyncio.gather(running, return_exceptions=steps is not None)


def verdict(reward: float, score: float) -> dict[str, Any]:
    return {"reward": reward, "score": score, "metrics": {"field_acc": reward / 2, "completion": 1.0}}


@pytest.fixture(scope="module")
def done(server: str, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A job that ended, and whose coordinator was started again after its first step."""
    rig = Rig(tmp_path_factory.mktemp("job"), server)
    asyncio.run(rig.live(steps=1))
    asyncio.run(rig.live(steps=None))
    return rig


def tracked(rig: Rig, server: str) -> tuple[MlflowClient, Any]:
    client = MlflowClient(tracking_uri=server)
    return client, client.get_run(rig.status[-1]["tracking"]["mlflow"]["runId"])


def history(client: MlflowClient, run: Any) -> dict[int, dict[str, float]]:
    """Step -> name -> value; each is there once."""
    found: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, name)
        assert len(points) == len({point.step for point in points}), f"{name} was logged twice"
        for point in points:
            found.setdefault(point.step, {})[name] = point.value
    return found


def read(folder: str) -> list[dict[str, Any]]:
    """Groups below a folder of the artifact store, as they lie there."""
    paths = sorted(Path(folder.removeprefix("file://")).rglob("*.json.gz"))
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


def test_a_run_says_whose_it_is_and_how_it_was_made(done: Rig, server: str) -> None:
    client, run = tracked(done, server)
    assert run.info.run_name == "job-uid"
    assert client.get_experiment(run.info.experiment_id).name == "ns/job"
    told = {name: run.data.tags[f"headway.dev/{name}"] for name in ("job", "namespace", "uid", "kind")}
    assert told == {"job": "job", "namespace": "ns", "uid": "uid", "kind": "RLTrainingJob"}
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


def test_a_running_job_tells_its_run_of_signals_and_of_a_change(tmp_path: Path, server: str) -> None:
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


def test_the_status_leads_to_the_run(done: Rig, server: str) -> None:
    _, run = tracked(done, server)
    told = done.status[-1]["tracking"]["mlflow"]
    page, _, place = told["url"].partition("#")
    assert place == f"/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_validation_in_mlflow_is_what_its_episodes_say(done: Rig, server: str, step: int) -> None:
    found = {
        name: value
        for name, value in history(*tracked(done, server))[step].items()
        if name.startswith("val/")
    }
    groups = read(done.layout.validation_groups(step))
    assert len(groups) == 4
    same(found, recounted(groups, "val", "val/episodes") | validated(groups))


@pytest.mark.parametrize("step", [1, 2])
def test_a_batch_in_mlflow_is_what_its_episodes_say(done: Rig, server: str, step: int) -> None:
    logged = history(*tracked(done, server))[step]
    report = json.loads(done.store.get(done.layout.step_history(step)))
    spooled = {group["group_id"]: group for group in read(done.layout.train_groups)}
    groups = [spooled[name] for name in report["groups"]]
    trained = [g for g in groups if report["train_tokens"][g["group_id"]]]
    expected = recounted(groups, "rollout", "episodes")
    valid = [e["reward"] for e in scored(trained)]
    expected["rollout/reward/valid_mean"] = float(np.mean(valid)) if valid else 0.0
    expected |= spread("rollout/external_score/", [e["score"] for e in scored(groups)])
    prefixes = ("rollout/", "episodes/")
    same({name: value for name, value in logged.items() if name.startswith(prefixes)}, expected)
    assert logged["training/global_step"] == step
    assert logged["analysis/batch_completion_ratio"] == 1.0, "the environment's own word"
    assert logged["analysis/batch_valid_ratio"] == len(trained) / len(groups)


def same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert sorted(found) == sorted(expected)
    wrong = {name: (found[name], expected[name]) for name in found if not near(found[name], expected[name])}
    assert wrong == {}


def near(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def scored(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for group in groups for e in group["episodes"] if e["outcome"] != "InfraError"]


def spread(prefix: str, values: list[float], only: str = "mean std min max") -> dict[str, float]:
    return {f"{prefix}{name}": float(getattr(np, name)(values)) for name in only.split()}


KINDS = ("unclosed", "no_name", "not_json", "arguments", "structure", "other")
"""What may be wrong with a call."""
REASONS = (
    *("tools", "system", "dropped", "inserted", "role", "calls", "arguments", "call_id", "whitespace"),
    *("content", "again", "cut_off", "thought", "template"),
)
"""Why a history may drift."""


def said_again(tokens: list[int]) -> float:
    """Share of a turn's phrases of eight tokens that it has sampled before."""
    phrases = [tuple(tokens[at : at + 8]) for at in range(len(tokens) - 7)]
    return sum(phrase in phrases[:at] for at, phrase in enumerate(phrases)) / len(phrases) if phrases else 0.0


def recounted(groups: list[dict[str, Any]], prefix: str, rates: str) -> dict[str, float]:
    """Figures of episodes, from the records as they lie in the store."""
    episodes = scored(groups)
    turns = [turn for e in episodes for turn in e["turns"]]
    rewards = [e["reward"] for e in episodes]
    # Every conversation is the builtin agent's: each of the model's messages is a turn of its own.
    calls = [
        [call for message in e["messages"] for call in message.get("tool_calls") or []] for e in episodes
    ]
    answers = [message["content"] for e in episodes for message in e["messages"] if message["role"] == "tool"]
    unreadable = sum(turn["malformed_tool_calls"] for turn in turns)
    readable = sum(map(len, calls))
    failed = sum(text == "error: no such key" for text in answers)
    rows = [row for e in episodes for row in e["rows"]]
    branches = [row for e in episodes for row in e["rows"][1:]]
    positions = sum(len(row["tokens"]) for row in rows)
    logprobs = [p for row in rows for p, m in zip(row["logprobs"], row["mask"], strict=True) if m]
    outcomes = Counter(e["outcome"] for g in groups for e in g["episodes"])
    every = sum(outcomes.values())
    # Each turn of the script is short: no context fills up, and what is cut is a turn.
    cut = [any(turn["finish_reason"] == "length" for turn in e["turns"]) for e in episodes]
    tools = Counter(call["function"]["name"] for made in calls for call in made)
    sums = [sum(turn["sampled_tokens"] for turn in e["turns"]) for e in episodes]
    prompts = [sum(len(r["tokens"]) - sum(r["mask"]) for r in e["rows"]) for e in episodes]
    limit = [e["outcome"] == "Truncated" and not short for e, short in zip(episodes, cut, strict=True)]
    said = [row["tokens"][span["start"] : span["end"]] for row in rows for span in row["turns"]]
    repeated = [*map(said_again, said)]
    kinds = Counter(kind for t in turns for kind, n in t["malformed_kinds"].items() for _ in range(n))
    drifted = Counter(d["reason"] for e in episodes for d in e["drifts"] for _ in range(d["count"]))
    return {
        **spread(f"{prefix}/reward/", rewards),
        f"{prefix}/reward/zero_frac": rewards.count(0) / len(rewards),
        f"{prefix}/reward_metrics/field_acc": float(np.mean(rewards)) / 2,
        f"{prefix}/reward_metrics/completion": 1.0,
        f"{prefix}/repetition/mean": float(np.mean(repeated)),
        f"{prefix}/repetition/max": max(repeated),
        f"{rates}/max_tokens_rate": float(np.mean(cut)),
        f"{rates}/context_limit_rate": 0.0,
        f"{rates}/time_limit_rate": 0.0,
        f"{rates}/episode_token_limit_rate": np.mean([e["token_limited"] for e in episodes]),
        **spread(f"{prefix}/turns/", [len(e["turns"]) for e in episodes], "mean min max"),
        f"{prefix}/turns/malformed_tool_call_rate": np.mean([t["malformed_tool_calls"] > 0 for t in turns]),
        f"{prefix}/turns/token_limit_rate": np.mean([t["finish_reason"] == "length" for t in turns]),
        f"{prefix}/turns/guided_share": sum(t["sampled_tokens"] for t in turns if t["guided"]) / sum(sums),
        f"{prefix}/turns/fork_rate": sum(e["forks"] for e in episodes) / len(turns),
        **{f"{prefix}/forks_of/{why}": drifted[why] / len(turns) for why in REASONS},
        **spread(f"{prefix}/rows/", [len(e["rows"]) for e in episodes], "mean max"),
        f"{prefix}/rows/branch_share": len(branches) / len(rows),
        f"{prefix}/rows/branch_token_share": sum(sum(row["mask"]) for row in branches) / len(logprobs),
        f"{prefix}/rows/repeated_share": sum(row["mask"].count(0) for row in branches) / positions,
        **spread(f"{prefix}/tool_calls/", [len(made) for made in calls], "mean max"),
        f"{prefix}/tool_calls/failed_share": failed / readable if readable else 0.0,
        f"{prefix}/tool_calls/malformed_share": unreadable / (unreadable + readable),
        **{
            f"{prefix}/tool_calls/malformed_share_of/{kind}": kinds[kind] / (unreadable + readable)
            for kind in KINDS
        },
        **{f"{prefix}/tool_calls_of/{name}": n / len(episodes) for name, n in tools.items()},
        f"{prefix}/tokens/prompt_mean": float(np.mean(prompts)),
        **spread(f"{prefix}/tokens/response_", [turn["sampled_tokens"] for turn in turns]),
        **spread(f"{prefix}/tokens/episode_", sums),
        f"{prefix}/logprob/zero_count": logprobs.count(0.0),
        f"{prefix}/logprob/zero_frac": logprobs.count(0.0) / len(logprobs),
        f"{prefix}/logprob/zero_per_group": logprobs.count(0.0) / len(groups),
        **spread(f"{prefix}/logprob/nz_", logprobs),
        f"{rates}/malformed_tool_call_rate": np.mean(
            [any(t["malformed_tool_calls"] for t in e["turns"]) for e in episodes]
        ),
        f"{rates}/fork_rate": np.mean([e["forks"] > 0 for e in episodes]),
        f"{rates}/token_limit_rate": np.mean(cut),
        f"{rates}/turn_limit_rate": np.mean(limit),
        **{
            f"{rates}/outcome_{name}_rate": outcomes[name] / every
            for name in ("Completed", "Truncated", "AgentError", "InfraError")
        },
    }


def validated(groups: list[dict[str, Any]]) -> dict[str, float]:
    """What validations report beside: both judgments, each pass figure by every choice of k tries."""
    within = [[e["reward"] for e in scored([group])] for group in groups]
    found = {
        "val/reward/num_prompts": len(groups),
        "val/reward/rollouts_per_prompt": len(scored(groups)) / len(groups),
        "val/episodes/completion_rate": 1.0,
        **spread("val/external_score/", [e["score"] for e in scored(groups)]),
    }
    for name in ("mean", "std", "min", "max"):
        found[f"val/reward/{name}_within_groups"] = np.mean([getattr(np, name)(row) for row in within])
    for judge, key in (("reward", "reward"), ("external_score", "score")):
        good = [[e[key] >= THRESHOLD for e in scored([group])] for group in groups]
        found[f"val/{judge}/succeeded_rollouts"] = sum(map(sum, good))
        found[f"val/{judge}/failed_rollouts"] = sum(map(len, good)) - sum(map(sum, good))
        found[f"val/{judge}/success_threshold"] = THRESHOLD
        for k in KS:
            chosen = [list(itertools.combinations(row, k)) for row in good]
            at = np.mean([np.mean([any(some) for some in row]) for row in chosen])
            found[f"val/{judge}/pass_at_{k}"] = found[f"val/{judge}/pass_k_{k}"] = at
            found[f"val/{judge}/pass_power_{k}"] = np.mean(
                [np.mean([all(some) for some in row]) for row in chosen]
            )
    for k in KS:
        found[f"val/reward/pass_prompts_{k}"] = len(groups)
        found[f"val/reward/pass_tries_{k}"] = len(scored(groups))
    return found


def test_the_script_shows_whatever_is_recounted(done: Rig) -> None:
    """A figure that is 0 everywhere would equal any wrong recount of it."""
    expected = [
        recounted(read(done.layout.validation_groups(step)), "val", "val/episodes") for step in (0, 1, 2)
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
