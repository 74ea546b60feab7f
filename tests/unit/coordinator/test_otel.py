"""Episodes and steps as OpenTelemetry spans, and a receiver that is slow, unreachable or refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import learner_rig
import pytest
import written_run
from aiohttp import ClientSession, web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from ports import free_port

from headway_api.config import Identity
from headway_api.records import EpisodeRecord, Outcome, StepReport
from headway_coordinator.metrics import otel, otlp
from headway_coordinator.metrics.otel import MAX_LINKS, Span, of_episode, of_step, of_update, request
from headway_coordinator.metrics.otlp import Otlp

JOB = Identity(name="refunds", namespace="team", uid="0f0e", kind="RLTrainingJob")
MODEL = "hf://acme/tiny"


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> EpisodeRecord:
    made = written_run.write(tmp_path_factory.mktemp("run"), steps=1, groups=1, size=1)
    from headway_api.run_files import RunFiles
    from headway_api.store import FileStore

    files = RunFiles(FileStore(), made.layout)
    [group] = files.groups([made.layout.train_group("t0-000001")])
    return group.episodes[0].model_copy(update={"outcome": Outcome.COMPLETED})


def named(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def test_an_episode_is_a_trace_of_turns_tools_and_waits(episode: EpisodeRecord) -> None:
    spans = of_episode(JOB, MODEL, episode)
    root = spans[0]
    assert (root.name, root.parent) == ("invoke_agent refunds", None)
    assert (root.begun, root.ended) == (episode.started_at, episode.finished_at)
    assert {span.trace for span in spans} == {root.trace}
    assert {span.parent for span in spans[1:]} == {root.id}
    assert len({span.id for span in spans}) == len(spans)
    assert [span.name for span in spans[1:]] == [
        f"chat {MODEL}",
        "execute_tool look",
        f"chat {MODEL}",
        "sandbox",
        "judgement",
    ]
    began = episode.started_at
    tool = named(spans)["execute_tool look"]
    assert (tool.begun - began, tool.ended - began) == (3, 4.5)
    assert tool.attributes["gen_ai.tool.name"] == "look"
    turn = spans[1]
    assert (turn.begun - began, turn.ended - began) == (1, 3)
    assert turn.attributes["gen_ai.operation.name"] == "chat"
    assert turn.attributes["gen_ai.usage.output_tokens"] == 6
    assert root.attributes["gen_ai.conversation.id"] == episode.episode_id


def test_only_spans_of_turns_are_calls_to_a_server(episode: EpisodeRecord) -> None:
    """OpenTelemetry's conventions give a call to a model the kind CLIENT."""
    spans = [
        *of_episode(JOB, MODEL, episode),
        *of_step(JOB, report(1050.0), []),
        of_update(JOB, 3, 1053.0, 2.5),
    ]
    [resource] = ExportTraceServiceRequest.FromString(request(JOB, spans)).resource_spans
    kinds = {span.name: span.kind for span in resource.scope_spans[0].spans}
    calls = {f"chat {MODEL}"}
    assert {name for name, kind in kinds.items() if kind == otel.KIND_CLIENT} == calls
    assert {kind for name, kind in kinds.items() if name not in calls} == {otel.KIND_INTERNAL}
    named = {span.name for span in spans if span.attributes.get("gen_ai.provider.name") == "headway"}
    assert named == {"invoke_agent refunds", *calls}


def test_spans_sent_twice_are_one_trace(episode: EpisodeRecord) -> None:
    assert of_episode(JOB, MODEL, episode) == of_episode(JOB, MODEL, episode)
    other = JOB.model_copy(update={"uid": "another"})
    assert of_episode(other, MODEL, episode)[0].trace != of_episode(JOB, MODEL, episode)[0].trace


def test_the_trace_of_a_failed_episode_has_the_reason(episode: EpisodeRecord) -> None:
    lost = episode.model_copy(update={"outcome": Outcome.INFRA_ERROR, "error": "the sandbox went away"})
    assert of_episode(JOB, MODEL, lost)[0].failed == "the sandbox went away"
    assert of_episode(JOB, MODEL, episode)[0].failed is None


def report(ended_at: float | None) -> StepReport:
    metrics = {"timing_s/wait_for_batch": 40.0, "timing_s/policy_update": 8.0, "timing_s/step": 48.0}
    update = {"groups": ["g"], "metrics": metrics, "ended_at": ended_at, "train_tokens": {"g": 7}}
    return learner_rig.report(3).model_copy(update=update)


def test_step_is_a_trace_of_its_parts_linked_to_its_episodes(episode: EpisodeRecord) -> None:
    root, wait, update = of_step(JOB, report(1050.0), [episode.episode_id])
    assert (root.name, root.begun, root.ended) == ("train_step", 1002, 1050)
    assert (wait.name, wait.begun, wait.ended) == ("wait_for_batch", 1002, 1042)
    assert (update.name, update.begun, update.ended) == ("policy_update", 1042, 1050)
    first = of_episode(JOB, MODEL, episode)[0]
    assert root.links == [(first.trace, first.id)]
    weights = of_update(JOB, 3, 1053.0, 2.5)
    assert (weights.trace, weights.parent) == (root.trace, root.id)
    assert (weights.begun, weights.ended) == (1050.5, 1053)


def test_a_step_has_no_more_links_than_receivers_keep() -> None:
    assert len(of_step(JOB, report(1050.0), [str(n) for n in range(1000)])[0].links) == MAX_LINKS


def test_a_step_without_a_known_time_is_not_sent() -> None:
    assert of_step(JOB, report(None), []) == []


def test_a_request_holds_every_span(episode: EpisodeRecord) -> None:
    spans = of_episode(JOB, MODEL, episode)
    found = ExportTraceServiceRequest.FromString(request(JOB, spans))
    [resource] = found.resource_spans
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about["service.name"] == "headway-coordinator"
    assert about["headway.dev/job"] == "refunds"
    [scope] = resource.scope_spans
    assert [(span.name, span.span_id) for span in scope.spans] == [(span.name, span.id) for span in spans]
    assert scope.spans[0].start_time_unix_nano == int(episode.started_at * 1e9)


class Receiver:
    """A receiver that answers with each status of `first`, and takes traces after that."""

    def __init__(self, *first: int) -> None:
        self.first = [*first]
        self.names: list[str] = []
        self.asked = 0

    async def __call__(self, asked: web.Request) -> web.Response:
        self.asked += 1
        body = await asked.read()
        if self.first:
            return web.Response(status=self.first.pop(0), headers={"Location": "/elsewhere"})
        found = ExportTraceServiceRequest.FromString(body)
        self.names += [
            span.name for each in found.resource_spans for s in each.scope_spans for span in s.spans
        ]
        return web.Response()


@asynccontextmanager
async def sending(receiver: Receiver | None) -> AsyncIterator[Otlp]:
    port = free_port()
    app = web.Application()
    runner = web.AppRunner(app)
    if receiver is not None:
        app.router.add_post("/v1/traces", receiver)
    await runner.setup()
    if receiver is not None:
        await web.TCPSite(runner, "127.0.0.1", port).start()
    async with ClientSession() as http:
        yield Otlp(http, f"http://127.0.0.1:{port}/", JOB)
    await runner.cleanup()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize("first", [(), (503,), (429, 502)])
async def test_spans_arrive_despite_temporary_errors(episode: EpisodeRecord, first: tuple[int, ...]) -> None:
    receiver, spans = Receiver(*first), of_episode(JOB, MODEL, episode)
    async with sending(receiver) as out:
        out.give(spans)
        await out.close()
    assert receiver.names == [span.name for span in spans]
    assert (out.sent, out.dropped) == (len(spans), 0)


async def test_spans_are_sent_while_the_job_goes_on(episode: EpisodeRecord) -> None:
    receiver = Receiver()
    async with sending(receiver) as out:
        task = asyncio.create_task(out.run())
        for _ in range(3):
            out.give(of_episode(JOB, MODEL, episode))
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await out.close()
    assert receiver.names.count("invoke_agent refunds") == 3


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 500])
async def test_a_receiver_that_refuses_is_asked_once(episode: EpisodeRecord, status: int) -> None:
    receiver, spans = Receiver(status, status), of_episode(JOB, MODEL, episode)
    async with sending(receiver) as out:
        out.give(spans)
        await out.close()
    assert receiver.asked == 1, "and a redirect is not followed"
    assert (out.sent, out.dropped) == (0, len(spans))


async def test_an_unreachable_receiver_costs_only_the_spans(episode: EpisodeRecord) -> None:
    async with sending(None) as out:
        out.give(of_episode(JOB, MODEL, episode))
        await out.close()
    assert out.sent == 0
    assert out.dropped > 0


async def test_the_number_of_waiting_spans_is_bounded(
    episode: EpisodeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MAX_WAITING", 4)
    receiver, spans = Receiver(), of_episode(JOB, MODEL, episode)
    async with sending(receiver) as out:
        out.give(spans)
        out.give(spans)
        await out.close()
    assert receiver.names == [span.name for span in spans[:4]]
    assert out.dropped == 2 * len(spans) - 4


async def test_spans_in_flight_at_the_jobs_end_are_sent_again(episode: EpisodeRecord) -> None:
    receiver, spans = Receiver(), of_episode(JOB, MODEL, episode)
    async with sending(receiver) as out:
        out.give(spans)
        task = asyncio.create_task(out.run())
        await asyncio.sleep(0)  # the export has begun
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await out.close()
    assert receiver.names == [span.name for span in spans]
    assert (out.sent, out.dropped) == (len(spans), 0)
