"""One sample of a task of Inspect AI in a sandbox: what is refused before it runs, and how it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import odd_tasks
import pytest
from endpoint_service import Answer, fails, gives, serving

from headway_sandbox import runner
from headway_sandbox.environment import Transcript
from headway_sandbox.http import HttpError
from headway_sandbox.suites import files
from headway_sandbox.suites.environment import InspectSample

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[3]
ENDED = Transcript([], [], truncated=False)
ANOTHER_ORDER = "each time it is loaded; let it sort them, or draw and shuffle with a fixed seed"


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the files by which the pod's processes find each other, and for the tasks."""
    shutil.copy(odd_tasks.__file__, tmp_path)
    shutil.copy(ROOT / "examples" / "suites" / "arithmetic.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(files.ENV_EPISODE_FILE, str(tmp_path / "episode.json"))
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    runner.awaited(runner.CHILD)
    yield tmp_path
    runner.close()


def later(*values: Any) -> Any:
    """A case that only `make test-long` runs."""
    return pytest.param(*values, marks=pytest.mark.long)


def sample_of(task: str, **args: Any) -> InspectSample:
    return InspectSample({"task": task, "args": args})


@pytest.mark.parametrize(
    ("task", "args", "sample", "field", "says"),
    [
        (
            "arithmetic.py@arithmetic",
            {},
            199,
            "limit",
            "200 is more than the task's 48 samples; write at most 48",
        ),
        later(
            "arithmetic.py@arithmetic", {"hard": 1}, 0, "args", "the task takes no argument hard; remove it"
        ),
        later(
            "arithmetic.py@algebra",
            {},
            0,
            "task",
            "cannot be loaded: PrerequisiteError: Task named 'algebra' not",
        ),
        later("nowhere/sums", {}, 0, "task", "nowhere/sums stands for 0 tasks; name one of the image"),
        ("odd_tasks.py@without_data", {}, 0, "task", "FileNotFoundError: no file letters.jsonl"),
        later("odd_tasks.py@unjudged", {}, 0, "task", "has no scorer"),
        (
            "odd_tasks.py@graded",
            {},
            0,
            "task",
            "the scorer inspect_ai/model_graded_qa asks a model, which is the candidate itself; use scorers",
        ),
        later("odd_tasks.py@boxed", {}, 0, "task", "a sandbox of Inspect's own, which a pod cannot start"),
        ("odd_tasks.py@shuffled", {}, 0, "task", ANOTHER_ORDER),
        later("odd_tasks.py@of_a_set", {}, 0, "task", ANOTHER_ORDER),
        later("odd_tasks.py@drawn_at_import", {}, 0, "task", ANOTHER_ORDER),
    ],
)
def test_a_task_that_cannot_be_run_is_refused_with_its_field(
    task: str, args: dict[str, Any], sample: int, field: str, says: str
) -> None:
    with pytest.raises(HttpError) as refused:
        sample_of(task, **args).reset({"sample": sample, "check": True}, 0)
    problem = refused.value.problem
    assert (problem["field"], problem["permanent"]) == (f"suite.{field}", True)
    assert says in problem["message"]


def test_an_image_without_inspect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's interpreter finds Headway, as in a sandbox's image, and no installed package."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "sandbox"))
    with pytest.raises(HttpError, match="install inspect-ai and openai into the image") as refused:
        sample_of("arithmetic.py@arithmetic").reset({"sample": 0, "check": True}, 0)
    assert refused.value.problem["field"] == "suite.image"


def test_the_last_sample_of_a_task_is_taken() -> None:
    observation = sample_of("arithmetic.py@arithmetic", maximum=3).reset({"sample": 47, "check": True}, 0)
    assert (observation.messages, observation.tools) == ([], [])


def test_inputs_of_messages_are_the_same_each_time() -> None:
    observation = sample_of("odd_tasks.py@of_messages").reset({"sample": 7, "check": True}, 0)
    assert (observation.messages, observation.tools) == ([], [])


def test_a_hash_seed_that_the_image_sets_applies_to_every_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    observation = sample_of("odd_tasks.py@of_a_set").reset({"sample": 7, "check": True}, 0)
    assert (observation.messages, observation.tools) == ([], [])


def gateway_turn(text: str) -> Answer:
    """A turn as the gateway answers it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "default"}
    return gives(head | {"choices": [choice], "usage": usage})


async def run(pod: Path, url: str) -> tuple[int, str]:
    """Run the program as the pod's server starts it."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "OPENAI_"))
    } | {
        files.ENV_EPISODE_FILE: os.environ[files.ENV_EPISODE_FILE],
        "HOME": str(pod),
        "TMPDIR": str(pod),
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "token",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headway_sandbox.suites.program"),
        env=variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_the_first_scorer_decides_and_each_is_a_metric(pod: Path) -> None:
    sample = sample_of("odd_tasks.py@letters")
    sample.reset({"sample": 3}, 0)
    async with serving(gateway_turn("d")) as service:
        code, output = await run(pod, service.url)
        asked = [message["content"] for message in service.bodies[0]["messages"]]
    assert code == 0, output
    assert asked == ["Say d."], "the fourth sample, and nothing of another"
    reward = sample.reward(ENDED)
    assert (reward.value, sample.score(ENDED)) == (0.5, 0.5)
    assert reward.metrics == {"verdict": 0.5, "parts_right": 1.0, "parts_brief": 0.25, "parts_kind": 0.0}
    assert service.tokens == ["Bearer token"]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("odd_tasks.py@broken", "the solver broke on purpose"),
        later("odd_tasks.py@unscorable", "the first scorer gave nan as none_at_all, which is not a score"),
        later("odd_tasks.py@unreadable", "the first scorer gave 'B' as grade, which is not a score"),
        later("odd_tasks.py@empty", "the first scorer, nothing, gave {}, which has no score"),
    ],
)
async def test_a_sample_without_a_score_has_no_reward(pod: Path, task: str, why: str) -> None:
    """Such an episode is an InfraError and is retried: no number is made up."""
    sample = sample_of(task)
    sample.reset({"sample": 0}, 0)
    async with serving(gateway_turn("a")) as service:
        code, output = await run(pod, service.url)
    assert code == 1
    assert why in output
    with pytest.raises(ValueError, match=why):
        sample.reward(ENDED)


@pytest.mark.parametrize(
    ("task", "args", "scorer"),
    [
        ("graded", {}, "inspect_ai/model_graded_qa"),
        ("asked", {"by": "name"}, "asks"),
        later("asked", {"by": "role"}, "asks"),
        ("asked", {"by": "caught"}, "asks"),
        ("asked", {"by": "client"}, "asks"),
    ],
)
async def test_a_candidate_never_grades_itself(
    pod: Path, task: str, args: dict[str, Any], scorer: str
) -> None:
    """Whichever model the scorer asks, only the candidate would answer."""
    sample = sample_of(f"odd_tasks.py@{task}", **args)
    sample.reset({"sample": 0}, 0)
    async with serving(gateway_turn("GRADE: C")) as service:
        code, output = await run(pod, service.url)
        asked = [message["content"] for message in service.bodies[-1]["messages"]]
        assert (len(service.bodies), asked) == (1, ["Say a."]), "the solver's own turn alone"
    assert code == 1, output
    with pytest.raises(ValueError, match=f"the scorer {scorer} asks a model.*use scorers that ask none"):
        sample.reward(ENDED)


def test_other_providers_do_not_reach_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's process has variables for these providers.

    A grader could reach the candidate through them.
    """
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "token")
    observation = sample_of("odd_tasks.py@without_other_gateways").reset({"sample": 0, "check": True}, 0)
    assert (observation.messages, observation.tools) == ([], [])


async def test_a_solver_asks_its_critic_also_after_a_score(pod: Path) -> None:
    sample = sample_of("odd_tasks.py@reflected")
    sample.reset({"sample": 0}, 0)
    async with serving(gateway_turn("a")) as service:
        code, output = await run(pod, service.url)
        assert len(service.bodies) == 3
    assert code == 0, output
    assert sample.score(ENDED) == 1.0


async def test_a_request_that_is_refused_ends_the_sample(pod: Path) -> None:
    sample = sample_of("arithmetic.py@arithmetic")
    sample.reset({"sample": 0}, 0)
    async with serving(fails(400, "stop is not applied; leave it out")) as service:
        code, _ = await run(pod, service.url)
        assert len(service.bodies) == 1
    assert code == 1
    with pytest.raises(ValueError, match="stop is not applied"):
        sample.score(ENDED)


def test_a_program_that_was_killed_leaves_no_score() -> None:
    sample = sample_of("arithmetic.py@arithmetic")
    sample.reset({"sample": 0}, 0)
    with pytest.raises(ValueError, match="it did not end"):
        sample.reward(ENDED)
