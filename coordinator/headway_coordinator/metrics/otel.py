"""Episodes and steps as spans of OpenTelemetry. Pure: `otlp.py` sends them.

Each episode has a trace: `invoke_agent`, and below it `chat` for each turn, `execute_tool` for each tool
call, and its other waits. Each step has a trace: the learner's parts, with links to the episodes of its
batch. Names and attributes follow OpenTelemetry's conventions for generative AI. Ids are functions of the
job's uid and of the episode or step. So sending a trace twice makes no second one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.report.conversation import steps
from headway_analysis.report.timeline import in_order, laid_out
from headway_api import names
from headway_api.config import Identity
from headway_api.records import EpisodeRecord, Outcome, StepReport

MAX_LINKS: Final = 128
"""The most links of one span, as in the SDKs of OpenTelemetry."""
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
HEADWAY: Final = "headway"
"""The provider's name. The conventions have none for self-hosted servers, and allow custom names."""
FAILED: Final = (Outcome.INFRA_ERROR, Outcome.AGENT_ERROR)
KIND_INTERNAL, KIND_CLIENT, STATUS_ERROR = 1, 3, 2
"""Values of OTLP's enumerations SpanKind and StatusCode."""
Value = str | int | float | bool


@dataclass(frozen=True)
class Span:
    """One span. Ids are bytes: 16 of a trace, 8 of a span; times are Unix times."""

    trace: bytes
    id: bytes
    parent: bytes | None
    name: str
    begun: float
    ended: float
    attributes: Mapping[str, Value]
    failed: str | None = None
    """Why the span failed, if it did."""
    links: Sequence[tuple[bytes, bytes]] = ()
    """The ids (trace, span) of each linked span."""
    kind: int = KIND_INTERNAL
    """A value of OTLP's SpanKind. A turn has `KIND_CLIENT`, because it is a call to a server."""


def trace_id(uid: str, what: str) -> bytes:
    """The id of an episode's or step's trace."""
    return hashlib.sha256(f"{uid}/{what}".encode()).digest()[:16]


def span_id(uid: str, what: str) -> bytes:
    """The id of a span."""
    return hashlib.sha256(f"{uid}/span/{what}".encode()).digest()[:8]


def of_episode(job: Identity, model: str, episode: EpisodeRecord) -> list[Span]:
    """An episode's trace, its root first. `model`: the sampling model; empty if a job has several."""
    uid, name = job.uid, episode.episode_id
    trace, root = trace_id(uid, name), span_id(uid, name)
    failed = episode.error or "failed" if episode.outcome in FAILED else None
    scored = {"reward": episode.reward, "score": episode.score}
    attributes: dict[str, Value] = {
        OPERATION: "invoke_agent",
        PROVIDER: HEADWAY,
        "gen_ai.agent.name": job.name,
        "gen_ai.conversation.id": name,
        f"{names.GROUP}/group": episode.group_id,
        f"{names.GROUP}/outcome": episode.outcome.value,
        **{f"{names.GROUP}/{key}": value for key, value in scored.items() if value is not None},
    }
    return [
        Span(
            trace,
            root,
            None,
            f"invoke_agent {job.name}",
            episode.started_at,
            episode.finished_at,
            attributes,
            failed,
        ),
        *_turns(uid, model, episode, trace, root),
        *_waits(uid, episode, trace, root),
    ]


def _turns(uid: str, model: str, episode: EpisodeRecord, trace: bytes, root: bytes) -> Iterator[Span]:
    for step in steps(episode):
        turn, name = step.turn, f"{episode.episode_id}/turn/{step.turn.index}"
        attributes: dict[str, Value] = {
            OPERATION: "chat",
            PROVIDER: HEADWAY,
            **({"gen_ai.request.model": model} if model else {}),
            "gen_ai.usage.input_tokens": turn.prompt_tokens,
            "gen_ai.usage.output_tokens": turn.sampled_tokens,
            f"{names.GROUP}/cached_tokens": turn.cached_tokens,
            f"{names.GROUP}/finish_reason": turn.finish_reason,
            f"{names.GROUP}/policy_version": str(turn.policy_version),
        }
        yield Span(
            trace,
            span_id(uid, name),
            root,
            f"chat {model}".strip(),
            step.begun,
            step.ended,
            attributes,
            kind=KIND_CLIENT,
        )
        for number, call in enumerate(step.calls):
            tool: dict[str, Value] = {
                OPERATION: "execute_tool",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.call.id": call.id,
            }
            identity = span_id(uid, f"{name}/{number}")
            failed = (call.answer or "")[:200] if call.failed else None
            yield Span(
                trace, identity, root, f"execute_tool {call.name}", call.begun, call.ended, tool, failed
            )


def _waits(uid: str, episode: EpisodeRecord, trace: bytes, root: bytes) -> Iterator[Span]:
    """An episode's waits other than turns and tools. `agent` is left out, because it contains these."""
    for number, span in enumerate(episode.spans):
        if span.kind not in ("turn", "tool", "agent"):
            begun, ended = episode.started_at + span.began, episode.started_at + span.ended
            identity = span_id(uid, f"{episode.episode_id}/{span.kind}/{number}")
            yield Span(trace, identity, root, span.kind, begun, ended, {})


def of_step(job: Identity, report: StepReport, episodes: Sequence[str]) -> list[Span]:
    """A step's trace, its root first. Empty if the report does not say when the step ended.

    Args:
        episodes: ids of the episodes in the step's batch.
    """
    if report.ended_at is None:
        return []
    uid, name = job.uid, _step(report.step)
    trace, root = trace_id(uid, name), span_id(uid, name)
    parts = in_order(report)
    begun = report.ended_at - sum(parts.values())
    attributes: dict[str, Value] = {
        f"{names.GROUP}/step": report.step,
        f"{names.GROUP}/policy_version": str(report.version),
        f"{names.GROUP}/groups": len(report.groups),
        f"{names.GROUP}/tokens": sum(report.train_tokens.values()),
    }
    links = [(trace_id(uid, each), span_id(uid, each)) for each in episodes[:MAX_LINKS]]
    found = [Span(trace, root, None, "train_step", begun, report.ended_at, attributes, links=links)]
    for part, began, ended in laid_out(parts, begun):
        found.append(Span(trace, span_id(uid, f"{name}/{part}"), root, part, began, ended, {}))
    return found


def of_update(job: Identity, step: int, ended: float, seconds: float) -> Span:
    """The span from a step's report until the first server had the step's weights."""
    uid, name = job.uid, _step(step)
    identity = span_id(uid, f"{name}/update_weights")
    root = span_id(uid, name)
    return Span(trace_id(uid, name), identity, root, "update_weights", ended - seconds, ended, {})


def _step(step: int) -> str:
    return f"step-{step:06d}"


def request(job: Identity, spans: Sequence[Span]) -> bytes:
    """The body of an OTLP request (protobuf) with these spans."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    about = {
        "service.name": "headway-coordinator",
        "k8s.namespace.name": job.namespace,
        f"{names.GROUP}/job": job.name,
        f"{names.GROUP}/uid": job.uid,
        f"{names.GROUP}/kind": job.kind,
    }
    _put(resource.resource.attributes, about)
    scope = resource.scope_spans.add()
    scope.scope.name = names.GROUP
    for span in spans:
        made = scope.spans.add()
        made.trace_id, made.span_id, made.name = span.trace, span.id, span.name
        if span.parent is not None:
            made.parent_span_id = span.parent
        made.kind = span.kind
        made.start_time_unix_nano = int(span.begun * 1e9)
        made.end_time_unix_nano = int(max(span.begun, span.ended) * 1e9)
        _put(made.attributes, span.attributes)
        for trace, identity in span.links:
            link = made.links.add()
            link.trace_id, link.span_id = trace, identity
        if span.failed is not None:
            made.status.code, made.status.message = STATUS_ERROR, span.failed
    found: bytes = message.SerializeToString()
    return found


def _put(attributes: Any, values: Mapping[str, Value]) -> None:
    for key, value in values.items():
        made = attributes.add()
        made.key = key
        if isinstance(value, bool):
            made.value.bool_value = value
        elif isinstance(value, int):
            made.value.int_value = value
        elif isinstance(value, float):
            made.value.double_value = value
        else:
            made.value.string_value = value
