"""An episode as a trace in MLflow: a span for the episode, one for each turn, one for each tool call.

Ids are functions of the job's uid and the episode's id, so logging an episode twice makes no second trace.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from headway_analysis.measures.tries import Try
from headway_analysis.report.conversation import Step, first, is_timed, steps
from headway_api import logs, names
from headway_api.records import EpisodeRecord, Outcome, Purpose
from headway_api.status import MlflowRun

AT_ONCE: Final = 50
"""Traces whose spans are sent in one request."""
CHARACTERS: Final = 8000
"""The most characters of a message in a trace. The stored episode has all of it."""
EQUAL_SHARES: Final = "the record has no time of a turn: the turns share the episode's time equally"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Traced:
    """An episode that becomes a trace."""

    one: Try
    episode: EpisodeRecord
    when: tuple[Purpose, int] | None = None
    """Why a training job ran the episode, and at which step. None if it belongs to an evaluation."""

    @property
    def name(self) -> str:
        """The name of the trace."""
        step = "" if self.when is None else f"{self.when[0].value} {self.when[1]}, "
        return f"{step}row {self.one.place.row}, try {self.one.index}"

    @property
    def tags(self) -> dict[str, str]:
        """Tags by which the trace is found."""
        step = {} if self.when is None else {"purpose": self.when[0].value, "step": str(self.when[1])}
        return {**step, **about(self.one)}


@dataclass(frozen=True)
class Span:
    """One span, as plain data."""

    id: str
    parent: str | None
    name: str
    kind: str
    begun: float
    ended: float
    """`begun` and `ended` are Unix times."""
    attributes: Mapping[str, Any]
    failed: bool = False


def trace_id(job: str, episode: EpisodeRecord) -> str:
    """Id of an episode's trace: 32 hexadecimal digits. `job` is the job's uid.

    The same episode has another id in `otel.py`. One MLflow server may receive both traces, and would merge
    traces of one id.
    """
    return hashlib.sha256(f"mlflow/{job}/{episode.episode_id}".encode()).hexdigest()[:32]


def log(
    client: Any, run: MlflowRun, job: str, episodes: Iterable[Traced], until: float, **details: str
) -> None:
    """Log traces of episodes, in batches. Stops between batches at the time `until`, and logs that.

    Blocking. Raises what MLflow raises. A trace that was logged before is replaced by an equal one.

    Args:
        client: an `mlflow.tracing.client.TracingClient`.
        job: the job's uid.
        episodes: read one by one. Of each batch, only the spans are in memory.
        until: a time of `time.monotonic`.
        details: further fields of the event `mlflow-traces-left`.
    """
    made, sent = (_of(run, job, each) for each in episodes), 0
    while some := [*islice(made, AT_ONCE)]:
        if time.monotonic() > until:
            logs.event(_log, "mlflow-traces-left", level=logging.WARNING, sent=sent, **details)
            return
        client.log_spans(run.experiment_id, [span for found, _ in some for span in found])
        for _, entry in some:
            client.start_trace(entry)
        sent += len(some)


def _of(run: MlflowRun, job: str, traced: Traced) -> tuple[list[Any], Any]:
    """An episode's spans and its entry, as MLflow's own types."""
    trace, made = trace_id(job, traced.episode), spans(traced)
    return [entity(span, trace) for span in made], info(traced, made[0], trace, run)


def spans(traced: Traced) -> list[Span]:
    """The spans of an episode: the root first, then every turn with its tool calls."""
    root = _id(traced.episode.episode_id)
    return [_root(root, traced), *_turns(root, traced.episode)]


def _id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _root(identity: str, traced: Traced) -> Span:
    one, episode = traced.one, traced.episode
    outputs = {
        "outcome": one.outcome.value,
        "reward": one.reward,
        "external_score": one.external_score,
        "metrics": dict(one.metrics),
        "answer": short(episode.messages[-1:]),
    }
    return Span(
        identity,
        None,
        traced.name,
        "AGENT",
        episode.started_at,
        episode.finished_at,
        {
            "mlflow.spanInputs": {"messages": short(first(episode))},
            "mlflow.spanOutputs": outputs,
            **{f"{names.GROUP}/{key}": value for key, value in traced.tags.items()},
            **({} if is_timed(episode) else {f"{names.GROUP}/times": EQUAL_SHARES}),
            f"{names.GROUP}/forks": one.forks,
            f"{names.GROUP}/drifts": [drift.model_dump(mode="json") for drift in one.drifts],
        },
        failed=one.outcome in (Outcome.INFRA_ERROR, Outcome.AGENT_ERROR),
    )


def about(one: Try) -> dict[str, str]:
    """A try's place and result, as far as they are known."""
    tags = {
        "candidate": one.place.candidate,
        "task": one.place.task,
        "row": one.place.row,
        "try": one.index,
        "episode": one.episode_id,
        "outcome": one.outcome.value,
        "reward": one.reward,
        "external_score": one.external_score,
        "success": one.success,
    }
    return {key: str(value) for key, value in tags.items() if value not in (None, "")}


def _turns(root: str, episode: EpisodeRecord) -> Iterator[Span]:
    heard = len(first(episode))
    for step in steps(episode):
        identity = _id(f"{episode.episode_id}/turn/{step.turn.index}")
        until = heard if step.at is None else step.at
        yield _turn(identity, root, step, episode.messages[max(0, until - 1) : until])
        for number, call in enumerate(step.calls):
            yield Span(
                _id(f"{episode.episode_id}/turn/{step.turn.index}/{number}"),
                identity,
                call.name or "tool",
                "TOOL",
                call.begun,
                call.ended,
                {
                    "mlflow.spanInputs": call.arguments,
                    "mlflow.spanOutputs": None if call.answer is None else call.answer[:CHARACTERS],
                },
                failed=call.failed,
            )
        heard = until + 1 + len(step.calls)


def _turn(identity: str, root: str, step: Step, heard: Sequence[Mapping[str, Any]]) -> Span:
    """The span of a turn. Its inputs are the latest messages; earlier turns have the rest."""
    turn = step.turn
    return Span(
        identity,
        root,
        f"turn {turn.index}",
        "CHAT_MODEL",
        step.begun,
        step.ended,
        {
            "mlflow.spanInputs": {"messages": short(heard)},
            "mlflow.spanOutputs": None if step.message is None else short([step.message])[0],
            "mlflow.chat.tokenUsage": tokens(turn.prompt_tokens, turn.cached_tokens, turn.sampled_tokens),
            f"{names.GROUP}/finish_reason": turn.finish_reason,
            f"{names.GROUP}/delivered": turn.delivered,
            f"{names.GROUP}/malformed_tool_calls": turn.malformed_tool_calls,
        },
    )


def tokens(prompt: int, cached: int, sampled: int) -> dict[str, int]:
    """Token counts under MLflow's names; `prompt` includes cached tokens."""
    return {
        "input_tokens": prompt,
        "output_tokens": sampled,
        "total_tokens": prompt + sampled,
        "cache_read_input_tokens": cached,
    }


def short(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose text is cut at `CHARACTERS`."""
    return [{key: _cut(value) for key, value in message.items()} for message in messages]


def _cut(value: Any) -> Any:
    return f"{value[:CHARACTERS]}..." if isinstance(value, str) and len(value) > CHARACTERS else value


def entity(span: Span, trace: str) -> Any:
    """A span as MLflow's own type."""
    from mlflow.entities import Span as Entity

    attributes = {"mlflow.traceRequestId": f"tr-{trace}", "mlflow.spanType": span.kind, **span.attributes}
    return Entity.from_dict(
        {
            "trace_id": f"tr-{trace}",
            "span_id": span.id,
            "parent_span_id": span.parent,
            "name": span.name,
            "start_time_unix_nano": int(span.begun * 1e9),
            "end_time_unix_nano": int(span.ended * 1e9),
            "status": {"code": "STATUS_CODE_ERROR" if span.failed else "STATUS_CODE_OK", "message": ""},
            "attributes": {name: json.dumps(value) for name, value in attributes.items()},
            "events": [],
        }
    )


def info(traced: Traced, root: Span, trace: str, run: MlflowRun) -> Any:
    """MLflow's entry of a trace, with the run that it belongs to."""
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    one, episode = traced.one, traced.episode
    used = tokens(one.prompt_tokens + one.cached_tokens, one.cached_tokens, one.sampled_tokens)
    return TraceInfo(
        trace_id=f"tr-{trace}",
        trace_location=TraceLocation.from_experiment_id(run.experiment_id),
        request_time=int(episode.started_at * 1000),
        execution_duration=int(one.seconds * 1000),
        state=TraceState.ERROR if root.failed else TraceState.OK,
        request_preview=json.dumps(root.attributes["mlflow.spanInputs"])[:1000],
        response_preview=json.dumps(root.attributes["mlflow.spanOutputs"])[:1000],
        client_request_id=episode.episode_id,
        trace_metadata={
            "mlflow.sourceRun": run.run_id,
            "mlflow.trace_schema.version": "3",
            "mlflow.trace.tokenUsage": json.dumps(used),
        },
        tags={
            "mlflow.traceName": root.name,
            **{f"{names.GROUP}/{key}": value for key, value in traced.tags.items()},
        },
    )
