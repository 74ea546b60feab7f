"""How a judge's endpoint is asked: its cost, the answers it may give, and what happens if it fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import judge_rig
import pytest
from endpoint_service import (
    TOKEN,
    Answer,
    cut_short,
    dropped,
    fails,
    gives,
    raw,
    says,
    serving,
    silent,
)
from evil_replies import Evil, everywhere, evil_server, grown
from judge_rig import GRADE, question

from headway_api.artifacts import Layout
from headway_api.records import Judgement
from headway_api.store import FileStore
from headway_coordinator.endpoint.reply import EndpointReplyError, UnreadableReplyError, read
from headway_coordinator.faults import InfraError
from headway_coordinator.judges import judge as asking
from headway_coordinator.judges import kept
from headway_coordinator.judges.question import UnusableAnswerError, answer

USAGE = {"prompt_tokens": 20, "sampled_tokens": 5}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the waits between tries, which these tests do not cover."""
    monkeypatch.setattr(asking, "backoff", lambda tries: 0.0)
    monkeypatch.setattr(asking, "pause", lambda asked, tries: 0.0)


async def ask(
    folder: Path, url: str, text: str = "Grade this.", schema: Any = None, **spec: Any
) -> tuple[Any, list[Judgement]]:
    """Ask the only judge of a new job one question.

    Returns the answer, and the judgements that are billed.
    """
    judgements: list[Judgement] = []
    of = judge_rig.spec(url, **spec)
    async with judge_rig.judges(folder, of) as judges:
        found = await judges.by_name["style"].ask(question(text, schema, of), judgements.append)
    return found, judgements


async def refused(folder: Path, url: str, **given: Any) -> tuple[InfraError, list[Judgement]]:
    judgements: list[Judgement] = []
    schema = given.pop("schema", None)
    of = judge_rig.spec(url, **given)
    async with judge_rig.judges(folder, of) as judges:
        with pytest.raises(InfraError) as caught:
            await judges.by_name["style"].ask(question(schema=schema, of=of), judgements.append)
    return caught.value, judgements


async def test_an_answer_is_text_and_costs_what_the_endpoint_counts(tmp_path: Path) -> None:
    async with serving(says(" Good. ")) as service:
        found, [judgement] = await ask(tmp_path, service.url)
    assert found == "Good."
    asked = question(of=judge_rig.spec(service.url)).digest
    assert judgement == Judgement(judge="style", question=asked, model="frontier-1", **USAGE)
    [body] = service.bodies
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("frontier-1", 1024, 0.0)
    assert "response_format" not in body
    assert service.tokens == [None]


async def test_an_answer_with_a_schema_is_json_that_fits_it(tmp_path: Path) -> None:
    async with serving(says('{"grade": 0.5}')) as service:
        found, _ = await ask(tmp_path, service.url, schema=GRADE)
    assert found == {"grade": 0.5}
    wanted = {"name": "answer", "schema": GRADE, "strict": True}
    assert service.bodies[0]["response_format"] == {"type": "json_schema", "json_schema": wanted}


async def test_the_token_is_read_from_its_secret_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "tokens/style").mkdir(parents=True)
    (tmp_path / "tokens/style/token").write_text(f"{TOKEN}\n")
    secret = {"secretRef": {"name": "keys"}}
    async with serving(says("Good."), fails(401, f"{TOKEN} is not a token")) as service:
        await ask(tmp_path, service.url, **secret)
        fault, _ = await refused(tmp_path, service.url, schema={}, **secret)
    assert service.tokens == [f"Bearer {TOKEN}"] * 2
    assert fault.cause is not None
    assert (fault.cause.reason, fault.cause.field) == ("JudgeDenied", "spec.judges[style].secretRef")
    assert TOKEN not in str(fault)
    stored = [path.read_text() for path in (tmp_path / "store").rglob("*.json")]
    assert stored
    assert not any(TOKEN in text for text in stored)


async def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    async with serving() as service:
        fault, _ = await refused(tmp_path, service.url, secretRef={"name": "keys"})
    assert "the key `token` of the Secret keys is missing or empty" in str(fault)
    assert fault.cause is not None
    assert (fault.cause.reason, fault.cause.field) == ("JudgeDenied", "spec.judges[style].secretRef")
    assert service.bodies == []


UNUSABLE: dict[str, tuple[Answer, str]] = {
    "prose": (says("I would say it is good."), "its answer is not valid JSON"),
    "JSON in prose": (says('Sure! {"grade": 1}'), "its answer is not valid JSON"),
    "a page": (says("<html><body>Grade: 1</body></html>"), "its answer is not valid JSON"),
    "nothing": (says(""), "its answer is empty"),
    "no content": (says(None), "its answer is empty"),
    "blanks": (says(" \n"), "its answer is empty"),
    "another shape": (says('{"score": 1}'), 'the answer lacks "grade"'),
    "another type": (says('{"grade": "1"}'), "the answer.grade is not of type number"),
    "not a number": (says('{"grade": NaN}'), "its answer is not valid JSON"),
    "1e999": (says('{"grade": 1e999}'), "its answer is not valid JSON"),
    "without end": (says("[" * 5000), "its answer is not valid JSON"),
    "a refusal": (says(None, refusal="I cannot.", finish="content_filter"), "it refused to answer"),
    "cut off": (says('{"grade": 1', finish="length"), "its answer is cut off at maxTokens; raise it"),
    "a call": (says(None, ("f", "{}")), "it called a tool, but has none"),
    "megabytes": (says("x" * 300_000), "its answer has more than 262144 bytes"),
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_an_invalid_answer_is_asked_again_and_never_0(tmp_path: Path, name: str) -> None:
    given, message = UNUSABLE[name]
    async with serving(given, says('{"grade": 1}')) as service:
        found, [judgement] = await ask(tmp_path, service.url, schema=GRADE)
    assert found == {"grade": 1}
    assert (judgement.prompt_tokens, judgement.sampled_tokens) == (40, 10), "both answers are paid for"
    assert [body["temperature"] for body in service.bodies] == [0.0, 1.0]
    async with serving(given) as service:
        fault, [judgement] = await refused(tmp_path / "again", service.url, schema=GRADE)
    assert len(service.bodies) == asking.TRIES
    assert judgement.prompt_tokens == 20 * asking.TRIES
    assert fault.cause is not None
    assert (fault.cause.reason, fault.cause.field) == ("JudgeAnswerUnusable", "spec.judges[style]")
    assert str(fault).startswith(f"judge style: {message}")
    assert len(str(fault)) < 700


BROKEN: dict[str, tuple[Answer, str, str]] = {
    "500": (fails(500), "JudgeFailing", "500 on purpose"),
    "busy": (fails(429), "JudgeSlow", "429 on purpose"),
    "overloaded": (fails(503), "JudgeSlow", "503 on purpose"),
    "a proxy without a model": (fails(502), "JudgeSlow", "502 on purpose"),
    "HTML": (raw(b"<html>Welcome</html>", "text/html"), "JudgeUnreadable", "an HTML page"),
    "no JSON": (raw(b"hello"), "JudgeUnreadable", "the answer is not complete JSON"),
    "nothing": (raw(b""), "JudgeUnreadable", "the answer is not complete JSON"),
    "no choices": (gives({"choices": []}), "JudgeUnreadable", "no choices"),
    "an error as a success": (gives({"error": {"message": "boom"}}), "JudgeFailing", "boom"),
    "cut short": (cut_short, "JudgeUnreadable", "is cut off"),
    "a connection that breaks": (dropped, "JudgeUnreachable", "ServerDisconnected"),
    "silence": (silent, "JudgeSlow", "no answer within 1 s"),
    "another path": (fails(404), "JudgeNotFound", "404"),
    "another model": (fails(404, code="model_not_found", param="model"), "JudgeNotFound", "404"),
    "no token": (fails(401), "JudgeDenied", "401"),
    "no money": (fails(429, code="insufficient_quota"), "JudgeDenied", "429"),
    "a filter": (fails(400, code="content_filter"), "JudgeRefused", "400"),
    "a question too long": (
        fails(400, "maximum context length is 10"),
        "JudgeQuestionTooLong",
        "maximum context",
    ),
    "another refusal": (fails(400, "no"), "JudgeRefused", "400 no"),
    "a redirect": (raw(b"", status=307, Location="http://10.0.0.1/"), "JudgeNotFound", "a redirect"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_judge_that_fails_is_named_with_its_field(tmp_path: Path, name: str) -> None:
    given, reason, message = BROKEN[name]
    async with serving(given) as service:
        fault, [judgement] = await refused(tmp_path, service.url, timeoutSeconds=1)
    assert fault.cause is not None
    assert fault.cause.reason == reason
    assert fault.cause.field is not None
    assert fault.cause.field.startswith("spec.judges[style]")
    assert message in str(fault)
    assert "judge style" in str(fault)
    assert service.url in str(fault), "where it is served"
    assert (judgement.prompt_tokens, judgement.cached) == (0, False)


async def test_a_temporary_failure_costs_one_more_request(tmp_path: Path) -> None:
    for first in (fails(500), fails(429), fails(503), raw(b"<html>"), dropped):
        async with serving(first, says("Good.")) as service:
            found, _ = await ask(tmp_path / str(id(first)), service.url)
        assert (found, len(service.bodies)) == ("Good.", 2)


async def test_a_refused_parameter_is_left_out_from_then_on(tmp_path: Path) -> None:
    refuses = [
        fails(400, f"unknown parameter: {name}", param=name)
        for name in ("response_format", "temperature", "seed", "max_tokens")
    ]
    of = None
    async with serving(*refuses, says('{"grade": 1}')) as service:
        of = judge_rig.spec(service.url, cache=False)
        async with judge_rig.judges(tmp_path, of) as judges:
            for _ in range(2):
                found = await judges.by_name["style"].ask(
                    question(schema=GRADE, of=of), lambda judgement: None
                )
                assert found == {"grade": 1}
    assert len(service.bodies) == 6
    assert {*service.bodies[-1]} == {"model", "messages", "stream", "max_completion_tokens"}


async def test_an_equal_question_is_asked_once_also_by_a_successor(tmp_path: Path) -> None:
    async with serving(says("Good."), says("Bad.")) as service:
        first, [paid] = await ask(tmp_path, service.url)
        again, [free] = await ask(tmp_path, service.url)
        other, _ = await ask(tmp_path, service.url, "Grade that.")
    assert (first, again, other) == ("Good.", "Good.", "Bad.")
    assert (paid.cached, free.cached, free.prompt_tokens) == (False, True, 0)
    assert paid.question == free.question
    layout = Layout(f"file://{tmp_path}/store", "ns", "job", "uid")
    stored = FileStore().get(layout.judgement(paid.question))
    assert json.loads(stored) == {"answer": "Good."}


async def test_without_a_cache_each_question_is_asked(tmp_path: Path) -> None:
    async with serving(says("Good."), says("Bad.")) as service:
        found = [(await ask(tmp_path, service.url, cache=False))[0] for _ in range(2)]
    assert found == ["Good.", "Bad."]
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("stored", [b"", b"[]", b'{"answer": {"grade": "high"}}', b'{"answer": ""}', b"\xff"])
async def test_a_question_with_an_invalid_stored_answer_is_asked_again(tmp_path: Path, stored: bytes) -> None:
    async with serving(says('{"grade": 1}')) as service:
        of = judge_rig.spec(service.url)
        layout = Layout(f"file://{tmp_path}/store", "ns", "job", "uid")
        FileStore().put(layout.judgement(question(schema=GRADE, of=of).digest), stored)
        found, _ = await ask(tmp_path, service.url, schema=GRADE)
    assert found == {"grade": 1}
    assert len(service.bodies) == 1


async def test_an_unavailable_store_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*given: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(FileStore, "get", unavailable)
    monkeypatch.setattr(kept, "read", unavailable)
    monkeypatch.setattr(FileStore, "put_new", unavailable)
    async with serving(says("Good.")) as service:
        found, _ = await ask(tmp_path, service.url)
    assert found == "Good."


async def test_equal_questions_at_the_same_time_are_asked_once(tmp_path: Path) -> None:
    judgements: list[Judgement] = []
    async with serving(says("Good.")) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges:
            asks = (judges.by_name["style"].ask(question(of=of), judgements.append) for _ in range(5))
            found = await asyncio.gather(*asks)
    assert found == ["Good."] * 5
    assert len(service.bodies) == 1
    assert sorted(one.prompt_tokens for one in judgements) == [0, 0, 0, 0, 20]


async def test_a_cancelled_caller_does_not_cancel_anothers_question(tmp_path: Path) -> None:
    judgements: list[Judgement] = []
    held, came = asyncio.Event(), asyncio.Event()

    async def later(request: Any, asked: Any) -> Any:
        came.set()
        await held.wait()
        return await says("Good.")(request, asked)

    async with serving(later) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges:
            judge = judges.by_name["style"]
            first, second = (
                asyncio.create_task(judge.ask(question(of=of), judgements.append)) for _ in range(2)
            )
            await came.wait()
            while sum(one.waiting for one in judge._open.values()) < 2:
                await asyncio.sleep(0.01)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            held.set()
            assert await second == "Good."
            assert len(service.bodies) == 1
            assert [one.prompt_tokens for one in judgements] == [0, 20]


async def test_the_last_cancelled_caller_ends_the_request(tmp_path: Path) -> None:
    async with serving(silent, says("Good.")) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges:
            judge = judges.by_name["style"]
            asked = asyncio.create_task(judge.ask(question(of=of), lambda judgement: None))
            while not service.running:
                await asyncio.sleep(0.01)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            assert await judge.ask(question(of=of), lambda judgement: None) == "Good."


async def test_no_more_questions_are_in_flight_than_the_spec_says(tmp_path: Path) -> None:
    async with serving(says("Good.")) as service:
        of = judge_rig.spec(service.url, concurrency=2)
        async with judge_rig.judges(tmp_path, of) as judges:
            judge = judges.by_name["style"]
            asks = (judge.ask(question(str(n), of=of), lambda judgement: None) for n in range(12))
            await asyncio.gather(*asks)
    assert service.peak <= 2


async def test_no_episode_begins_until_a_failed_judge_answers(tmp_path: Path) -> None:
    async with serving(fails(500), says("ok")) as service:
        service.answers = [fails(500)] * asking.TRIES + [fails(503), fails(401), says("ok")]
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges:
            await judges.ready()
            assert service.bodies == [], "nothing is known against it"
            with pytest.raises(InfraError):
                await judges.by_name["style"].ask(question(of=of), lambda judgement: None)
            await asyncio.gather(*(judges.ready() for _ in range(5)))
    probes = service.bodies[asking.TRIES :]
    assert [body["max_tokens"] for body in probes] == [asking.PROBE_TOKENS] * 3


async def test_an_invalid_answer_does_not_block_others(tmp_path: Path) -> None:
    async with serving(says("prose")) as service:
        of = judge_rig.spec(service.url)
        async with judge_rig.judges(tmp_path, of) as judges:
            with pytest.raises(InfraError):
                await judges.by_name["style"].ask(question(schema=GRADE, of=of), lambda judgement: None)
            asked = len(service.bodies)
            await judges.ready()
    assert len(service.bodies) == asked


@pytest.mark.hostile
async def test_an_evil_answer_is_a_fault_of_the_judge(tmp_path: Path) -> None:
    async def ask(evil: Evil, folder: Path) -> None:
        async with evil_server() as server:
            server.evil, of = evil, judge_rig.spec(server.url, timeoutSeconds=5, cache=False)
            async with judge_rig.judges(folder, of) as judges:
                with pytest.raises(InfraError) as caught:
                    await judges.by_name["style"].ask(question(), lambda judgement: None)
            assert server.heads, f"{evil.name} was never asked for: {caught.value}"
        assert caught.value.cause is not None, evil.name
        assert len(str(caught.value)) < 1000, evil.name

    # Slow answers occupy a judge until its timeout, so each gets its own job.
    slow, quick = ([each for each in everywhere() if each.slow is slow] for slow in (True, False))
    await asyncio.gather(*(ask(evil, tmp_path / str(number)) for number, evil in enumerate(slow)))
    for evil in quick:
        await ask(evil, tmp_path / "quick")


CHAT = {
    "choices": [{"message": {"content": '{"grade": 0.5}'}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2},
}


@pytest.mark.hostile
def test_a_mutated_answer_is_accepted_or_rejected() -> None:
    def judgement(body: bytes) -> Any:
        try:
            return answer(read(body), question(schema=GRADE))
        except (UnusableAnswerError, UnreadableReplyError, EndpointReplyError):
            return None

    def bent(reply: Any) -> bytes:
        return bytes(reply).partition(b"\r\n\r\n")[2]

    found = [judgement(bent(next(iter(evil.parts())))) for evil in grown(CHAT, 1, 2000)]
    assert {"grade": 0.5} in found
    assert None in found
    assert all(one is None or isinstance(one["grade"], int | float) for one in found)
