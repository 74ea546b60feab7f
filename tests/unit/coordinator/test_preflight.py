"""The preflight's checks: what they refuse, with which message, and how the policy treats a failure."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web
from faulty_servers import Scripted, broker, drop, fail, first, sandbox, say, serving
from preflight_bench import Bench, spec, write_inputs
from refusing_bucket import refusing_store
from toy_tokenizer import QWEN3_TEMPLATE

from headway_api.exits import JobError
from headway_api.sandbox_api import ResetReply
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore, StoreDeniedError
from headway_coordinator.preflight import checks
from headway_coordinator.trajectory.probe import SIMPLE

UNVALIDATED = {"everySteps": 0, "atStart": False}
MAX_TOKENS = "spec.rollout.sampling.maxTokens"
CONTEXT = "spec.model.contextLength"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_inputs(tmp_path)


@asynccontextmanager
async def sandboxes(reward: float = 0.0) -> AsyncIterator[tuple[Scripted, Scripted]]:
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(serving(sandbox(reward)))
        yield await stack.enter_async_context(serving(broker(box.url))), box


async def test_a_sound_job_passes_every_check(folder: Path) -> None:
    bench = Bench(spec(folder))
    async with sandboxes() as (leases, _):
        await bench.environment(folder, leases)
        assert leases.count("DELETE /v1/leases/preflight-0") == 1
    last = bench.reports[-1]
    assert last.state == "Passed"
    assert [check.name for check in last.checks] == [
        "Dataset",
        "Validation",
        "Overlap",
        "Batch",
        "Model",
        "ContextLength",
        "Weights",
        "Tokenizer",
        "Environment",
        "Reward",
        "ToolCalls",
        "Context",
    ]


def give_template(folder: Path, template: str) -> None:
    """Replace the model's chat template."""
    for path in folder.rglob("tokenizer_config.json"):
        config = json.loads(path.read_text())
        (path.parent / "chat_template.jinja").unlink(missing_ok=True)
        path.write_text(json.dumps(config | {"chat_template": template}))


async def test_template_that_writes_no_call_fails_before_the_start(folder: Path) -> None:
    """The environment offers a tool, but none of the model's calls would ever reach it."""
    bench = Bench(spec(folder))
    give_template(folder, "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}")
    async with sandboxes() as (leases, box):
        asked = [{"role": "user", "content": "Look up brave-otter."}]
        box.faults["POST /reset"] = say({"messages": asked, "tools": SIMPLE})
        with pytest.raises(JobError) as refused:
            await bench.environment(folder, leases)
    found = refused.value.termination
    assert (found.reason, found.field) == ("ToolCallsUnreadable", "spec.agent.builtin.toolCallParser")
    assert bench.failed == [("ToolCalls", "spec.agent.builtin.toolCallParser")]


OF_THE_USERS_OWN = {"http": {"url": "http://agent.example.com"}}, {"sandboxed": {"command": ["program"]}}
MUTE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize("agent", OF_THE_USERS_OWN)
@pytest.mark.parametrize("template", [QWEN3_TEMPLATE, MUTE])
async def test_agent_with_own_tools_is_warned_of_unreadable_calls(
    folder: Path, agent: dict[str, Any], template: str
) -> None:
    bench = Bench(spec(folder, agent=agent))
    give_template(folder, template)
    async with sandboxes() as (leases, box):
        box.faults["POST /agent"] = say({"running": True, "exit_code": None, "output": ""})
        await bench.environment(folder, leases)
    [check] = [one for one in bench.reports[-1].checks if one.name == "ToolCalls"]
    assert (check.passed, check.warning) == (True, template == MUTE), check.message
    assert check.message.startswith("the environment offers no tools")
    for word in ("the gateway refuses", "config.json", "chat_template.jinja", "toolCallParser"):
        assert (word in check.message) == (template == MUTE)


@pytest.mark.parametrize(
    ("blocks", "reason", "field"),
    [
        ({"data": {"train": {"uri": "file:///nowhere.jsonl"}}}, "DatasetNotFound", "spec.data.train.uri"),
        ({"algorithm": {"batchSize": 9, "groupSize": 2}}, "TooFewRows", "spec.algorithm.batchSize"),
        ({"model": {"base": "file:///nowhere"}}, "ModelUnavailable", "spec.model.base"),
    ],
)
def test_a_missing_necessity_fails_a_job_under_any_policy(
    folder: Path, blocks: dict[str, Any], reason: str, field: str
) -> None:
    off = {"evaluation": UNVALIDATED, "preflight": {"policy": "Off"}}
    bench = Bench(spec(folder, **(off | blocks)))
    with pytest.raises(JobError) as caught:
        bench.basics(folder)
    found = caught.value.termination
    assert (found.reason, found.field, caught.value.permanent) == (reason, field, True)
    assert bench.reports[-1].state == "Failed"


def test_a_store_that_does_not_answer_fails_no_check(folder: Path) -> None:
    bench = Bench(spec(folder, data={"train": {"uri": "s3://bucket/rows.jsonl"}}, evaluation=UNVALIDATED))
    with pytest.raises(JobError) as caught:
        bench.runner.basics(refusing_store("SlowDown", 503), folder / "cache")
    assert not caught.value.permanent
    assert bench.reports == [], "nothing is known of the dataset yet"


def test_a_check_fails_only_retriably_once_the_job_has_begun(folder: Path) -> None:
    bench = Bench(spec(folder, data={"train": {"uri": "s3://bucket/rows.jsonl"}}, evaluation=UNVALIDATED))
    bench.runner.begun = True
    with pytest.raises(JobError, match="AccessDenied") as caught:
        bench.runner.basics(refusing_store("AccessDenied", 403), folder / "cache")
    assert not caught.value.permanent
    assert bench.reports == []


async def test_a_judgement_that_is_not_a_number_fails_the_check(folder: Path) -> None:
    bench = Bench(spec(folder))
    async with sandboxes() as (leases, box):
        box.answers["POST /finish"] = lambda body: {"reward": float("nan"), "score": 0.0, "metrics": {}}
        with pytest.raises(JobError, match="finite"):
            await bench.environment(folder, leases)
    assert bench.failed == [("Environment", "spec.environment.entrypoint")]


def test_a_context_longer_than_the_models_is_refused(folder: Path) -> None:
    model = {"base": f"file://{folder}/model", "contextLength": 1024}
    with pytest.raises(JobError, match="own limit of 512"):
        Bench(spec(folder, model=model)).basics(folder)


@pytest.mark.parametrize(("asked", "held"), [(None, 4096), (8192, 8192)])
def test_a_longrope_model_holds_what_its_servers_hold(tmp_path: Path, asked: int | None, held: int) -> None:
    """Without a configured length, vLLM serves such a model only up to its pretraining length."""
    config = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    scaling = {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}
    (tmp_path / "config.json").write_text(json.dumps(config | scaling))
    assert checks.context_length(tmp_path, "s3://b/phi", asked) == held


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "ModelIncomplete"),
        (b'{"max_position_embeddings": 51', "ModelNotLoadable"),
        (b"\xff\xfe\x00", "ModelNotLoadable"),
        (b"[]", "ModelNotLoadable"),
        (b'{"max_position_embeddings": 512, "a": "' + b" " * (4 << 20) + b'"}', "ModelNotLoadable"),
        (b'{"max_position_embeddings": 512, "a": ' + b"[" * 99 + b"]" * 99 + b"}", "ModelNotLoadable"),
        (b'{"max_position_embeddings": 512, "a": ' + b"[" * 100_000 + b"}", "ModelNotLoadable"),
        (b'{"max_position_embeddings": 1e999}', "ModelNotLoadable"),
        (b'{"max_position_embeddings": "many"}', "ModelNotLoadable"),
    ],
)
def test_a_model_without_a_configuration_is_refused(folder: Path, config: bytes | None, reason: str) -> None:
    file = folder / "model" / "config.json"
    file.unlink() if config is None else file.write_bytes(config)
    bench = Bench(spec(folder))
    with pytest.raises(JobError, match="upload the whole Hugging Face folder") as caught:
        bench.basics(folder)
    found = caught.value.termination
    assert (found.reason, found.field, caught.value.permanent) == (reason, "spec.model.base", True)
    assert bench.failed == [("ContextLength", "spec.model.base")]


def start_from(folder: Path, adapter_of: Path) -> RLTrainingJobSpec:
    """A job that starts from an adapter of the base model in `adapter_of`."""
    (folder / "start").mkdir()
    config = {
        "peft_type": "LORA",
        "r": 32,
        "lora_alpha": 64,
        "base_model_name_or_path": f"file://{adapter_of}",
        "target_modules": ["q_proj"],
    }
    (folder / "start" / "adapter_config.json").write_text(json.dumps(config))
    model = {"base": f"file://{folder}/model", "warmStart": {"uri": f"file://{folder}/start"}}
    return spec(folder, model=model)


def test_weights_to_start_from_are_checked(folder: Path) -> None:
    bench = Bench(start_from(folder, folder / "model"))
    bench.basics(folder)
    found = next(check for check in bench.reports[-1].checks if check.name == "WarmStart")
    assert (found.passed, found.message) == (True, "a LoRA adapter of the base model")


def test_weights_of_another_model_are_refused_as_a_start(folder: Path) -> None:
    bench = Bench(start_from(folder, folder / "other"))
    with pytest.raises(JobError, match="the adapter is of base model") as caught:
        bench.basics(folder)
    assert caught.value.permanent
    assert bench.failed == [("WarmStart", "spec.model.warmStart")]


def test_the_starting_weights_are_not_read_again_after_step_0(folder: Path) -> None:
    started = start_from(folder, folder / "model")
    Bench(started).basics(folder)
    for left in ("start", "cache"):
        shutil.rmtree(folder / left)
    before = Bench(started)
    before.runner.begun = True
    with pytest.raises(JobError, match="there is nothing at") as caught:
        before.basics(folder)
    assert caught.value.termination.field == "spec.model.warmStart"
    assert not caught.value.permanent
    after = Bench(started)
    FileStore().put(after.layout.latest, b'{"step": 0}')
    after.basics(folder)
    assert after.failed == []


def test_a_forbidden_read_of_the_pointer_is_the_buckets_fault(folder: Path) -> None:
    bench = Bench(start_from(folder, folder / "model"))
    FileStore().put(bench.layout.latest, b'{"step": 0}')

    class Closed(FileStore):
        def get(self, uri: str) -> bytes:
            if uri == bench.layout.latest:
                raise StoreDeniedError(f"{uri}: AccessDenied")
            return super().get(uri)

    with pytest.raises(JobError, match="AccessDenied") as caught:
        bench.runner.basics(Closed(), folder / "cache")
    assert caught.value.termination.reason == "BucketUnavailable"


async def test_a_context_that_is_too_short_says_what_to_write_instead(folder: Path) -> None:
    bench = Bench(spec(folder, rollout={"sampling": {"maxTokens": 200}, "timeoutSeconds": 10}))
    async with sandboxes() as (leases, _):
        with pytest.raises(JobError, match=r"lower spec\.rollout\.sampling\.maxTokens to \d+"):
            await bench.environment(folder, leases)
    assert bench.failed == [("Context", "spec.rollout.sampling.maxTokens")]
    assert bench.reports[-1].state == "Failed"


@pytest.mark.parametrize(
    ("prompt", "field", "remedy"),
    [
        (508, MAX_TOKENS, f"lower {MAX_TOKENS} to 1, or spec.agent.builtin.maxTurns"),
        (509, CONTEXT, f"raise {CONTEXT}, or shorten the prompt"),
        (512, CONTEXT, f"raise {CONTEXT}, or shorten the prompt"),
        (600, CONTEXT, f"raise {CONTEXT}, or shorten the prompt"),
    ],
)
def test_a_prompt_that_leaves_no_room_needs_a_longer_context(
    folder: Path, prompt: int, field: str, remedy: str
) -> None:
    """Four turns of one token each need a context of the prompt and four more tokens."""
    renderer = Mock()
    renderer.render.return_value = [0] * prompt
    asked = ResetReply(messages=[{"role": "user", "content": "a prompt"}], tools=[])
    with pytest.raises(JobError) as caught:
        checks.context(asked, renderer, 512, spec(folder))
    ending = caught.value.termination
    assert (ending.reason, ending.field) == ("ContextTooShort", field)
    sums = f"{prompt} prompt and tool tokens + 4 turns x 20 tokens = {prompt + 80}"
    assert ending.message == f"{sums}, but the context holds 512, tool results not counted; {remedy}"


async def test_warn_continues_and_off_runs_no_check(folder: Path) -> None:
    async with sandboxes(reward=7.0) as (leases, _):
        warned = Bench(spec(folder, preflight={"policy": "Warn", "episodes": 0}))
        await warned.environment(folder, leases)
        assert warned.reports[-1].state == "Warned"
        assert warned.failed == [("Reward", "spec.reward.range")]
        asked = leases.count("POST")
        off = Bench(spec(folder, preflight={"policy": "Off"}))
        await off.environment(folder, leases)
        assert off.reports[-1].state == "Skipped"
        assert leases.count("POST") == asked
        enforced = Bench(spec(folder))
        with pytest.raises(JobError, match=r"spec\.reward\.range") as caught:
            await enforced.environment(folder, leases)
        assert caught.value.termination.reason == "RewardOutOfRange"


async def test_an_unimportable_environment_fails_with_its_own_error(folder: Path) -> None:
    bench = Bench(spec(folder))
    async with sandboxes() as (leases, _):
        leases.faults["POST /v1/leases"] = fail(409, "EnvironmentNotImportable", permanent=True)
        with pytest.raises(JobError, match="EnvironmentNotImportable on purpose") as caught:
            await bench.environment(folder, leases)
    assert caught.value.permanent
    assert caught.value.termination.reason == "EnvironmentNotImportable"
    assert bench.failed[0][0] == "Environment"


async def test_a_reason_invalid_for_a_condition_is_not_passed_on(folder: Path) -> None:
    bench = Bench(spec(folder))
    async with sandboxes() as (leases, box):
        box.faults["POST /reset"] = fail(409, "bad reason: x", permanent=True)
        with pytest.raises(JobError, match="bad reason: x") as caught:
            await bench.environment(folder, leases)
    assert caught.value.termination.reason == "SandboxUnavailable"


@pytest.mark.parametrize("where", ["lease", "reset"])
async def test_a_failure_of_the_platform_does_not_blame_the_job(folder: Path, where: str) -> None:
    bench = Bench(spec(folder, pendingDeadlineSeconds=2 if where == "lease" else 20))
    async with sandboxes() as (leases, box):
        if where == "lease":
            leases.faults["POST /v1/leases"] = fail(503, "PoolEmpty")
        else:
            box.faults["POST /reset"] = drop
        with pytest.raises(JobError) as caught:
            await bench.environment(folder, leases)
    assert caught.value.termination.reason == "SandboxUnavailable"
    assert not caught.value.permanent


def blames(reason: str, message: str) -> Any:
    """A fault: the answer of a sandbox whose environment's code failed."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = {"reason": reason, "message": message, "field": ENTRYPOINT, "permanent": False}
        return web.json_response(body, status=500)

    return answer


async def test_a_reward_that_always_raises_fails_with_its_own_error(folder: Path) -> None:
    bench = Bench(spec(folder))
    message = "reward raised ValueError: no price (/env/desk.py:31 in reward)"
    async with sandboxes() as (leases, box):
        box.faults["POST /finish"] = blames("RewardFailed", message)
        with pytest.raises(JobError) as caught:
            await bench.environment(folder, leases)
    found = caught.value.termination
    assert caught.value.permanent
    assert (found.reason, found.field, found.message) == ("RewardFailed", ENTRYPOINT, message)
    assert box.count("POST /finish") == 3
    assert bench.failed == [("Environment", ENTRYPOINT)]


async def test_a_reset_that_fails_only_at_first_passes_the_preflight(folder: Path) -> None:
    bench = Bench(spec(folder))
    async with sandboxes() as (leases, box):
        box.faults["POST /reset"] = first(
            2, blames("ResetFailed", "reset raised OSError: (/env/d.py:3 in reset)")
        )
        await bench.environment(folder, leases)
    assert not bench.failed


async def test_no_message_of_a_refusal_contains_the_request(folder: Path) -> None:
    bench = Bench(spec(folder))
    async with sandboxes() as (leases, _):
        leases.faults["POST /v1/leases"] = fail(409, "EnvironmentNotImportable", permanent=True)
        with pytest.raises(JobError) as caught:
            await bench.environment(folder, leases)
    assert caught.value.termination.message == "EnvironmentNotImportable on purpose"


ENTRYPOINT = "spec.environment.entrypoint"
HTTP = {"http": {"url": "http://agent.example/"}}


async def test_a_service_that_answers_anything_is_reachable(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(serving(Scripted({})))
        service.faults["GET /play"] = first(1, drop)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        bench = Bench(spec(folder, agent=HTTP, pendingDeadlineSeconds=30))
        await bench.runner.agent(http, f"{service.url}/play")
    assert service.count("GET /play") == 2
    assert [(check.name, check.passed) for check in bench.runner.results] == [("Agent", True)]


async def test_missing_service_is_named_and_asked_for_again_later(folder: Path) -> None:
    bench = Bench(spec(folder, agent=HTTP, pendingDeadlineSeconds=2))
    async with aiohttp.ClientSession() as http:
        with pytest.raises(JobError) as caught:
            await bench.runner.agent(http, "http://127.0.0.1:1/")
    found = caught.value.termination
    assert (found.reason, found.field, caught.value.permanent) == (
        "AgentUnreachable",
        "spec.agent.http.url",
        False,
    )
    waits = [report.waits_for for report in bench.reports if report.waits_for]
    assert [(check.name, check.field) for check in waits] == [("Agent", "spec.agent.http.url")]
    assert waits[0].message == "http://127.0.0.1:1/ does not answer; deploy the agent, or correct its address"


async def test_the_preflight_reports_a_reward_to_the_environment(folder: Path) -> None:
    async with serving(sandbox(0.0)) as box, serving(broker(box.url)) as leases:
        await Bench(spec(folder, agent=HTTP, reward={"range": [-2, 1]})).environment(folder, leases)
    assert box.asked[-1][1]["reported"] == [-2.0]


async def test_a_program_that_cannot_be_started_fails_the_preflight(folder: Path) -> None:
    async with serving(sandbox(0.0)) as box, serving(broker(box.url)) as leases:
        box.faults["POST /agent"] = fail(400, "AgentNotStarted", permanent=True)
        with pytest.raises(JobError) as caught:
            await Bench(spec(folder, agent={"sandboxed": {"command": ["nothing"]}})).environment(
                folder, leases
            )
    assert caught.value.termination.reason == "AgentNotStarted"
    assert ("POST /agent", ["nothing"]) in [(path, (body or {}).get("command")) for path, body in box.asked]


async def test_sandbox_that_cannot_be_made_is_reported_while_awaited(folder: Path) -> None:
    bench = Bench(spec(folder, pendingDeadlineSeconds=4))
    refused = 'pods "a" is forbidden: pod rejected: RuntimeClass "gvisor" not found'
    problem = {"reason": "Forbidden", "message": refused, "field": None, "permanent": False}
    async with sandboxes() as (leases, _):
        leases.faults["POST /v1/leases"] = fail(503, "PoolEmpty")
        leases.faults["GET /v1/pool"] = say({"ready": 0, "starting": 0, "leased": 0, "problem": problem})
        with pytest.raises(JobError):
            await bench.environment(folder, leases)
    messages = [report.waits_for.message for report in bench.reports if report.waits_for]
    field = "spec.environment.sandbox.runtimeClassName"
    assert messages == [f'{field}: RuntimeClass "gvisor" not found; install it, or name another one']


@pytest.mark.parametrize(
    ("how", "field", "fix"),
    [
        ("Error, exit code 1", "spec.environment.image", "build the image on Headway's sandbox image"),
        (
            "OOMKilled, exit code 137",
            "spec.environment.sandbox.resources",
            "raise its memory (limits.memory)",
        ),
    ],
)
async def test_a_sandbox_that_ends_at_once_has_a_field_and_a_fix(
    folder: Path, how: str, field: str, fix: str
) -> None:
    bench = Bench(spec(folder, pendingDeadlineSeconds=4))
    message = f"the sandbox's process ended ({how}) before its episode did"
    problem = {"reason": "SandboxEnded", "message": message, "field": None, "permanent": False}
    async with sandboxes() as (leases, _):
        leases.faults["POST /v1/leases"] = fail(503, "PoolEmpty")
        leases.faults["GET /v1/pool"] = say({"ready": 0, "starting": 0, "leased": 0, "problem": problem})
        with pytest.raises(JobError):
            await bench.environment(folder, leases)
    [waits_for] = [report.waits_for for report in bench.reports if report.waits_for]
    assert waits_for.field == field
    assert waits_for.message.startswith(f"{message}; ")
    assert waits_for.message.endswith(fix)
