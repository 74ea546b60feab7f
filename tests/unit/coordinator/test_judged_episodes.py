"""Episodes whose reward asks a judge, with a real sandbox server: how answers arrive, and the bill."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import judge_rig
import pytest
from endpoint_service import Service, fails, says
from endpoint_service import serving as endpoint
from episodes import a_group, sealed
from faulty_servers import broker, sandbox, serving
from preflight_bench import Bench, write_inputs
from preflight_bench import spec as job_spec
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_analysis.billing.segments import fold, total
from headway_api import prices
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, GroupRecord, Judgement, Outcome, UsageClass
from headway_api.store import FileStore
from headway_coordinator.faults import InfraError
from headway_coordinator.judges import judge as asking
from headway_coordinator.ledger import events
from headway_coordinator.ledger.usage import usage
from headway_coordinator.sandboxes import Broker


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "backoff", lambda tries: 0.0)
    monkeypatch.setattr(asking, "pause", lambda asked, tries: 0.0)


def grades(*values: float) -> list[Any]:
    return [says(f'{{"grade": {value}}}') for value in values]


async def test_a_reward_from_a_judge_is_used_and_billed(tok: Any, tmp_path: Path) -> None:
    async with endpoint(*grades(0.25)) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges, judge_rig.rig(tok, tmp_path, judges) as r:
            group = await judge_rig.ran(r, judge_rig.plan(size=2))
    assert [episode.reward for episode in group.episodes] == [0.25, 0.25]
    assert len(service.bodies) == 1, "the same question of the same row"
    judgements = [one for episode in group.episodes for one in episode.judgements]
    assert sorted((one.cached, one.prompt_tokens, one.sampled_tokens) for one in judgements) == [
        (False, 20, 5),
        (True, 0, 0),
    ]
    assert billed(group) == {UsageClass.JUDGE_PROMPT: 20, UsageClass.JUDGE_SAMPLE: 5}
    shown = usage(fold(events.of_group(group)), prices.DEFAULT, events_day(group))
    assert shown.judge_tokens == 25
    assert shown.unpriced == ["judgePrompt:frontier-1", "judgeSample:frontier-1"]
    assert EpisodeRecord.model_validate_json(group.episodes[0].model_dump_json()) == group.episodes[0]


def events_day(group: GroupRecord) -> Any:
    return next(iter(fold(events.of_group(group))))


def billed(group: GroupRecord) -> dict[UsageClass, float]:
    found = total(fold(events.of_group(group)))
    return {name: found[name] for name in (UsageClass.JUDGE_PROMPT, UsageClass.JUDGE_SAMPLE)}


@pytest.mark.parametrize("reward", [judge_rig.ASKS, "self.swallowed()"])
async def test_a_failed_judge_does_not_score_0(tok: Any, tmp_path: Path, reward: str) -> None:
    """The environment never sees the failure, so its own `except` cannot hide it."""
    async with endpoint(fails(400, "no")) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges, judge_rig.rig(tok, tmp_path, judges) as r:
            group = await judge_rig.ran(r, judge_rig.plan(reward=reward), retries=1)
    [episode], [retried] = group.episodes, group.discarded
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_ERROR, None)
    assert (retried.outcome, retried.reward) == (Outcome.INFRA_ERROR, None)
    assert "judge style: 400 no" in str(episode.error)
    assert {(cause.reason, cause.field) for cause in r.causes} == {
        ("JudgeRefused", "spec.judges[style].endpoint.url")
    }
    assert group.abandoned is not None
    assert group.scored == []


async def test_unusable_answers_are_still_billed(tok: Any, tmp_path: Path) -> None:
    async with endpoint(says("It is rather good.")) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges, judge_rig.rig(tok, tmp_path, judges) as r:
            group = await judge_rig.ran(r, judge_rig.plan(), retries=1)
    assert group.episodes[0].reward is None
    assert [cause.reason for cause in r.causes] == ["JudgeAnswerUnusable"] * 2
    assert billed(group)[UsageClass.JUDGE_PROMPT] == 2 * asking.TRIES * 20


async def test_a_judge_that_is_killed_costs_a_retry(tok: Any, tmp_path: Path) -> None:
    async with endpoint(fails(500)) as service:
        service.answers = [fails(500)] * asking.TRIES + grades(1.0)
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges, judge_rig.rig(tok, tmp_path, judges) as r:
            group = await judge_rig.ran(r, judge_rig.plan(), retries=1)
    assert [episode.reward for episode in group.episodes] == [1.0]
    assert [episode.outcome for episode in group.discarded] == [Outcome.INFRA_ERROR]


async def test_an_environment_that_does_not_await_a_judge_is_named(tok: Any, tmp_path: Path) -> None:
    held = asyncio.Event()

    async def later(request: Any, asked: Any) -> Any:
        await held.wait()
        return await says("x")(request, asked)

    async with endpoint(later) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges, judge_rig.rig(tok, tmp_path, judges) as r:
            group = await judge_rig.ran(r, judge_rig.plan(reward="self.left()"))
        held.set()
    assert group.episodes[0].reward is None
    [cause] = r.causes
    assert (cause.reason, cause.field) == ("JudgeNotAwaited", "spec.environment.entrypoint")


async def test_timed_out_episode_names_the_judge_it_waited_for(tok: Any, tmp_path: Path) -> None:
    async def never(request: Any, asked: Any) -> Any:
        await asyncio.Event().wait()

    async with endpoint(never) as service:
        of = judge_rig.spec(service.url, timeoutSeconds=600)
        async with (
            judge_rig.judges(tmp_path, of) as judges,
            judge_rig.rig(tok, tmp_path, judges, timeout=4.0) as r,
        ):
            group = await judge_rig.ran(r, judge_rig.plan())
    [cause] = r.causes
    assert (cause.reason, cause.field) == ("JudgeSlow", "spec.judges[style]")
    assert "which waits for judge style" in str(group.episodes[0].error)


async def test_an_invalid_question_is_the_environments_fault(tok: Any, tmp_path: Path) -> None:
    asks = "self.judge('style', [user('?')], {'pattern': '(a+)+'})"
    async with endpoint() as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges, judge_rig.rig(tok, tmp_path, judges) as r:
            await judge_rig.ran(r, judge_rig.plan(reward=asks))
    [cause] = r.causes
    assert (cause.reason, cause.field) == ("JudgeMisused", "spec.environment.entrypoint")
    assert "schema.pattern is not supported" in cause.message
    assert service.bodies == []


async def test_an_image_that_is_older_than_judges_is_named(tmp_path: Path) -> None:
    box = sandbox()
    box.answers = {**box.answers, "POST /finish": lambda body: {"reward": 0.0, "score": 0.0}}

    async def late(request: Any) -> Any:
        await asyncio.sleep(2.0)

    box.faults["POST /finish"] = late
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(box))
        judges = await stack.enter_async_context(judge_rig.judges(tmp_path, judge_rig.spec()))
        leases = await stack.enter_async_context(serving(broker(served.url)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        lease = Broker(http, leases.url, "t", "me").lease("e", 60, 20)
        leased = await stack.enter_async_context(lease)
        with pytest.raises(InfraError) as caught:
            await judges.finished(leased, lambda names: leased.finish([], False, judges=names))
    assert caught.value.cause is not None
    assert (caught.value.cause.reason, caught.value.cause.field) == (
        "JudgesUnsupported",
        "spec.environment.image",
    )


def test_each_judgement_of_an_episode_has_its_own_id() -> None:
    asked = [
        Judgement(judge="style", question="0" * 64, prompt_tokens=n, sampled_tokens=1) for n in (3, 0, 4)
    ]
    episode = sealed("t0-000000", 0, reward=1.0).model_copy(update={"judgements": asked})
    other = sealed("t0-000000", 1, reward=0.0)
    group = a_group("t0-000000", [1.0]).model_copy(update={"episodes": [episode, other]})
    found = [event.id for event in events.of_group(group) if "judge" in event.id]
    assert found == [
        f"{episode.episode_id}/{rest}"
        for rest in (
            "judge-0/judgePrompt",
            "judge-0/judgeSample",
            "judge-1/judgeSample",
            "judge-2/judgePrompt",
            "judge-2/judgeSample",
        )
    ]


async def checked(folder: Path, service: Service, **spec: Any) -> Bench:
    """Run the preflight's check of a job's judge."""
    judge = {"name": "style", "endpoint": {"url": service.url, "model": "m"}}
    of = job_spec(write_inputs(folder), judges=[judge], **spec)
    bench = Bench(of)
    async with judge_rig.judges(folder, *of.judges) as judges:
        await bench.runner.judges(judges, FileStore(), folder / "cache")
    return bench


async def test_the_preflight_asks_each_judge_whether_it_answers(tmp_path: Path) -> None:
    async with endpoint(says("ok")) as service:
        bench = await checked(tmp_path / "well", service)
        [check] = bench.runner.results
        assert (check.name, check.passed) == ("Judge style", True)
        off = await checked(tmp_path / "off", service, preflight={"policy": "Off"})
        assert off.runner.results == []
    async with endpoint(fails(401)) as service:
        bench = await checked(tmp_path / "denied", service)
        [check] = bench.runner.results
        assert (check.passed, check.field) == (False, "spec.judges[style].secretRef")
        assert check.message.startswith("JudgeDenied: judge style: 401")


async def test_the_preflight_waits_for_a_judge_that_is_late(tmp_path: Path) -> None:
    async with endpoint(fails(503), fails(503), says("ok")) as service:
        bench = await checked(tmp_path / "late", service)
    waited = [report.waits_for for report in bench.reports if report.waits_for]
    assert waited[0].field == "spec.judges[style]"
    assert bench.runner.results[-1].passed
    async with endpoint(fails(503)) as service:
        with pytest.raises(JobError) as caught:
            await checked(tmp_path / "never", service, pendingDeadlineSeconds=1)
    assert (caught.value.termination.reason, caught.value.permanent) == ("JudgeBusy", False)
