"""The baseline of `headway doctor --endpoint`: an endpoint's model plays, and no rollout server starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from baseline_rig import EPISODES, Rig, mixed, rig
from endpoint_service import MODEL, Service, fails, says, serving

from headway_api import names
from headway_api.baseline_endpoint import BaselineEndpoint
from headway_api.exits import JobError
from headway_api.spec.candidate import CandidateEndpoint
from headway_coordinator import status
from headway_coordinator.spool import decode

KEY = "sk-of-a-test"


async def calls_then_answers(request: web.Request, asked: Any) -> web.StreamResponse:
    await asyncio.sleep(0.005)  # so that requests overlap
    called = any(message["role"] == "tool" for message in asked["messages"])
    answer = says("It is gold.") if called else says(None, ("look_up", '{"key": "x"}'))
    return await answer(request, asked)


async def ended(stage: Rig, endpoint: BaselineEndpoint, patch: pytest.MonkeyPatch, **preflight: Any) -> None:
    """Run the job until its preflight has ended."""
    patch.setattr(status, "LEAST_SECONDS", 0.02)
    folder = stage.folder / "endpoint"
    endpoint.write(folder)
    patch.setenv(names.ENV_BASELINE_ENDPOINT, str(folder))
    running = asyncio.create_task(stage.coordinator(stage.config(**preflight)).run())
    try:
        async with asyncio.timeout(60):
            while not running.done() and "findings" not in stage.preflight_so_far:
                await asyncio.sleep(0.02)
        if running.done():
            await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def at(service: Service, **spec: Any) -> BaselineEndpoint:
    return BaselineEndpoint(
        CandidateEndpoint.model_validate({"url": service.url, "model": MODEL} | spec), KEY
    )


async def test_an_endpoint_plays_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path, mixed) as stage, serving(calls_then_answers) as service:
        await ended(stage, at(service, maxConcurrency=3), monkeypatch)
        assert set(stage.states) == {"Running", "Warned"}, "Sampling would start a rollout server"
        assert stage.preflight["episodes"] == EPISODES
        assert f"sampled at an endpoint by {MODEL}" in stage.preflight["summary"]
        assert set(service.tokens) == {f"Bearer {KEY}"}
        assert 1 < service.peak <= 3
        assert stage.engine.asked == [], "the job's own server samples nothing"
        groups = [decode(stage.store.get(uri)) for uri in stage.store.list(stage.layout().preflight_groups)]
        assert {(group.sampled_by, group.model) for group in groups} == {("endpoint", MODEL)}
        turns = sum(len(one.turns) for group in groups for one in group.episodes)
        usage = stage.statuses[-1]["usage"]
        assert usage["endpointTokens"] == 25 * turns, "the endpoint reports 25 tokens a turn"
        assert usage["evaluationTokens"] == 0


async def test_checks_that_need_the_jobs_own_model_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, mixed) as stage, serving(calls_then_answers) as service:
        await ended(stage, at(service), monkeypatch)
        found = {each["check"]: each for each in stage.preflight["findings"]}
        unknown = {check for check, each in found.items() if each["verdict"] == "Unknown"}
        assert {"tool-calls-parse", "throughput"} <= unknown
        assert MODEL in found["tool-calls-parse"]["message"]
        assert found["foothold"]["verdict"] == "Pass", "the environment is judged as always"
        assert found["context-fits"]["verdict"] in ("Pass", "Warn")


async def test_the_context_is_counted_by_the_jobs_own_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        rig(tmp_path, mixed) as stage,
        serving(says("gold " * 600)) as service,  # the job's context has 512 tokens
    ):
        await ended(stage, at(service), monkeypatch)
        [found] = [each for each in stage.preflight["findings"] if each["check"] == "context-fits"]
        assert (found["verdict"], found["field"]) == ("Fail", "spec.model.contextLength")


@pytest.mark.parametrize(
    ("answer", "reason", "option"),
    [
        (fails(401, "who are you"), "EndpointDenied", "--token-env"),
        (fails(404, "no such model", code="model_not_found"), "EndpointNotFound", "--model"),
    ],
)
async def test_a_refusal_names_the_command_line_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, reason: str, option: str
) -> None:
    async with rig(tmp_path, mixed) as stage, serving(answer) as service:
        with pytest.raises(JobError) as caught:
            await _failing(ended(stage, at(service), monkeypatch))
        assert caught.value.permanent
        assert caught.value.termination.reason == reason
        assert caught.value.termination.field == option
        assert option in caught.value.termination.message
        assert "spec.candidates" not in caught.value.termination.message
        assert KEY not in caught.value.termination.message


async def _failing(work: Awaitable[None]) -> None:
    """Raise the error itself, without the exception groups around it."""
    try:
        await work
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
