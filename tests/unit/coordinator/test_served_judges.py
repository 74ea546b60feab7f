"""Judges whose models the job serves itself: their address, their key, and how they fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import judge_rig
import pytest
from endpoint_service import Answer, Service, fails, says, serving
from preflight_bench import Bench, spec, write_inputs

from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.records import Judgement
from headway_api.spec.judge import Judge as JudgeSpec
from headway_api.store import FileStore
from headway_coordinator.faults import InfraError
from headway_coordinator.judges import judge as asking
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.connected import connected

KEY = "the-key-of-this-pair"
GRADE = {"type": "number"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the waits between tries, which these tests do not cover."""
    monkeypatch.setattr(asking, "backoff", lambda tries: 0.0)
    monkeypatch.setattr(asking, "pause", lambda asked, tries: 0.0)


def served(base: str = "s3://b/clerk", **other: Any) -> JudgeSpec:
    return JudgeSpec.model_validate({"name": "clerk", "model": {"base": base}, "timeoutSeconds": 20} | other)


@asynccontextmanager
async def judges(folder: Path, of: JudgeSpec, url: str) -> AsyncIterator[Judges]:
    place = folder / "tokens/clerk"
    place.mkdir(parents=True, exist_ok=True)
    (place / "token").write_text(KEY)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        layout = Layout(f"file://{folder}/store", "ns", "job", "uid")
        yield connected([of], http, FileStore(), layout, folder / "tokens", served={"clerk": url})


async def asked(folder: Path, of: JudgeSpec, service: Service) -> tuple[Any, list[Judgement]]:
    judgements: list[Judgement] = []
    async with judges(folder, of, service.url) as found:
        await found.ready()
        answer = await found.by_name["clerk"].ask(judge_rig.question(schema=GRADE, of=of), judgements.append)
        return answer, judgements


async def test_a_served_judge_is_asked_with_its_servers_key(tmp_path: Path) -> None:
    async with serving(says("0.5")) as service:
        found, [judgement] = await asked(tmp_path, served(), service)
    assert (found, judgement.prompt_tokens, judgement.sampled_tokens) == (0.5, 20, 5)
    assert {body["model"] for body in service.bodies} == {"base"}, "as rollout servers call their model"
    assert set(service.tokens) == {f"Bearer {KEY}"}


async def test_no_episode_begins_before_a_served_judge_answers(tmp_path: Path) -> None:
    """The judge's servers start after the coordinator, so earlier questions would be lost."""
    late = (fails(503, "loading"), fails(503, "loading"), says("ok"))
    async with serving(*late) as service, judges(tmp_path, served(), service.url) as found:
        await found.ready()
        assert len(service.bodies) == 3
        await found.ready()
        assert len(service.bodies) == 3, "it is asked until it answers"


@pytest.mark.parametrize(
    ("answer", "field", "fix"),
    [
        (fails(401, "no"), "spec.judges[clerk].model", "delete the job and create it again"),
        (fails(500, "dead"), "spec.judges[clerk]", "the job restarts its servers"),
    ],
)
async def test_failing_judge_is_a_fault_that_names_the_spec_field(
    answer: Answer, field: str, fix: str, tmp_path: Path
) -> None:
    of = served()
    async with serving(answer) as service, judges(tmp_path, of, service.url) as found:
        with pytest.raises(InfraError) as caught:
            await found.by_name["clerk"].ask(judge_rig.question(of=of), lambda judgement: None)
    assert caught.value.cause is not None
    assert caught.value.cause.field == field
    assert fix in str(caught.value)
    assert KEY not in str(caught.value)


def test_answers_are_cached_by_model_wherever_it_is_served() -> None:
    digests = {
        judge_rig.question(of=of).digest
        for of in (
            served(),
            served(concurrency=2),
            served("s3://b/other"),
            served("hf://b/clerk", model={"base": "hf://b/clerk", "revision": "main"}),
            JudgeSpec.model_validate({"name": "clerk", "endpoint": {"url": "http://j/v1", "model": "base"}}),
        )
    }
    assert len(digests) == 4, "how many questions are in flight changes no answer"


class TestPreflight:
    @staticmethod
    async def checked(folder: Path, base: str, answer: Answer, **blocks: Any) -> Bench:
        of = served(base)
        bench = Bench(spec(folder, judges=[of.as_object()], **blocks))
        async with serving(answer) as service, judges(folder, of, service.url) as found:
            await bench.runner.judges(found, FileStore(), folder / "cache")
        return bench

    async def test_model_is_looked_up_before_its_servers_are_awaited(self, tmp_path: Path) -> None:
        folder = write_inputs(tmp_path)
        bench = await self.checked(folder, f"file://{folder}/model", says("ok"))
        assert [(each.name, each.passed) for each in bench.runner.results] == [
            ("JudgeModel clerk", True),
            ("Judge clerk", True),
        ]

    async def test_missing_model_is_named_before_requesting_accelerators(self, tmp_path: Path) -> None:
        with pytest.raises(JobError) as caught:
            await self.checked(write_inputs(tmp_path), f"file://{tmp_path}/nothing", says("ok"))
        found = caught.value.termination
        assert (found.reason, found.field) == ("ModelUnavailable", "spec.judges[clerk].model.base")

    async def test_without_checks_a_served_judges_model_is_not_looked_up(self, tmp_path: Path) -> None:
        folder = write_inputs(tmp_path)
        off = {"preflight": {"policy": "Off"}}
        bench = await self.checked(folder, f"file://{tmp_path}/nothing", says("ok"), **off)
        assert bench.runner.results == []
