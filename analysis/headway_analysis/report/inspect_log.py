"""Episodes as a log of Inspect AI, which `inspect view` shows turn by turn.

A log has all episodes of a candidate, or some episodes of a run. A sample is a try: its id is the row, its
epoch the number of the try. Episodes are written one by one, so at most `AT_ONCE` of them are in memory.
Inspect AI's own recorder writes the file. The version of Inspect AI is pinned, since the recorder is not part
of its public API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway_analysis.measures.candidate import ALL, of_task
from headway_analysis.measures.tries import Try
from headway_analysis.report import inspect_messages
from headway_analysis.report.conversation import Call, Step, first, steps
from headway_analysis.report.document import CandidateTries, Finished, model_of
from headway_analysis.statistics.estimates import Estimate
from headway_api.records import EpisodeRecord, Outcome, Turn

if TYPE_CHECKING:
    from inspect_ai.event import Event
    from inspect_ai.log import EvalError, EvalResults, EvalSample, EvalSampleLimit, EvalSpec, EvalStats
    from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

AT_ONCE: Final = 64
SHOWN: Final = ("external_score", "success", "reward")
"""Measures that the log's results show; the report has the others."""
PlayedEpisode = tuple[Try, EpisodeRecord, Sequence[EpisodeRecord]]
"""A try, its episode, and the earlier attempts at it."""


@dataclass(frozen=True)
class Head:
    """What a log says about its run as a whole."""

    name: str
    """Name of the job."""
    namespace: str
    uid: str
    model: str
    """Name of the model whose episodes the log has."""
    data: str
    """URI of the dataset."""
    rows: int
    epochs: int
    """Tries at a row."""
    turn_limit: int | None = None
    """Maximum turns of the built-in agent."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further metadata."""


def write(
    path: Path,
    run: Finished,
    standing: CandidateTries,
    found: Mapping[str, Mapping[str, Estimate]],
    played: Iterable[PlayedEpisode],
) -> None:
    """Write one candidate's log. Blocking; call it outside of an event loop.

    Args:
        path: the file, with the ending `.eval`.
        run: the finished evaluation.
        standing: the candidate.
        found: the candidate's estimates, task -> measure -> estimate.
        played: the candidate's tries with their episodes. The iterable is read one item at a time.
    """
    job, spec = run.job, run.job.spec
    head = Head(
        job.name,
        job.namespace,
        job.uid,
        model=standing.name,
        data=spec.data.uri,
        rows=run.rows,
        epochs=spec.evaluation.group_size,
        turn_limit=spec.agent.turn_limit,
        more={"candidate": model_of(job, standing.name)},
    )
    failed = standing.stage == "Failed"
    why = f"{standing.reason}: {standing.message}" if failed else None
    of = ((standing.name, each) for each in played)
    asyncio.run(_write(path, head, standing.tries, _results(standing.tries, found), of, why))


def write_episodes(path: Path, head: Head, played: Sequence[tuple[str, PlayedEpisode]]) -> None:
    """Write a log of some episodes of a run, without estimates. Blocking; call it outside of an event loop.

    Args:
        path: the file, with the ending `.eval`.
        head: what the log says about the run.
        played: the name of the model that played, and the try. `row_id` and index of a try name its sample,
            so each try has a `row_id`, and no two have the same `row_id` and index.
    """
    tries = [one for _, (one, _, _) in played]
    asyncio.run(_write(path, head, tries, _results(tries, {}), played, None))


async def _write(
    path: Path,
    head: Head,
    tries: Sequence[Try],
    results: EvalResults,
    played: Iterable[tuple[str, PlayedEpisode]],
    why: str | None,
) -> None:
    """Write a log. `why`: why the run failed; None if it did not fail."""
    from inspect_ai.log._log import EvalPlan
    from inspect_ai.log._recorders.eval import EvalRecorder

    spec, recorder = _spec(head, tries), EvalRecorder(str(path.parent))
    await recorder.log_init(spec, str(path), clean=True)
    await recorder.log_start(spec, EvalPlan(name=head.name))
    waiting = recorder.data[recorder._log_file_key(spec)]
    for number, (model, (one, episode, earlier)) in enumerate(played, 1):
        await recorder.log_sample(spec, sample(one, episode, earlier, model, head.turn_limit))
        if number % AT_ONCE == 0:
            await waiting.write_buffered_samples()
    await recorder.log_finish(
        spec,
        "success" if why is None else "error",
        _stats(head.model, tries),
        results,
        None,
        None if why is None else _error(why),
        header_only=True,
    )


def _spec(head: Head, tries: Sequence[Try]) -> EvalSpec:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalSpec

    return EvalSpec(
        eval_id=f"{head.uid}-{head.model}",
        run_id=head.uid,
        created=_time(_begun(tries)),
        task=head.name,
        task_id=f"{head.namespace}/{head.name}",
        dataset=EvalDataset(name=head.name, location=head.data, samples=head.rows),
        model=head.model,
        config=EvalConfig(epochs=head.epochs),
        metadata={"namespace": head.namespace, "uid": head.uid, **head.more},
    )


def _begun(tries: Sequence[Try]) -> float:
    return min((each.finished_at - each.seconds for each in tries), default=0.0)


def _stats(model: str, tries: Sequence[Try]) -> EvalStats:
    from inspect_ai.log import EvalStats

    sums = (
        sum(each.prompt_tokens for each in tries),
        sum(each.cached_tokens for each in tries),
        sum(each.sampled_tokens for each in tries),
    )
    return EvalStats(
        started_at=_time(_begun(tries)),
        completed_at=_time(max((each.finished_at for each in tries), default=0.0)),
        model_usage={model: _used(*sums)},
    )


def _results(tries: Sequence[Try], found: Mapping[str, Mapping[str, Estimate]]) -> EvalResults:
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    own = of_task(tries, ALL)
    scored = sum(each.scored for each in own)
    scores = [
        EvalScore(
            name=name,
            scorer=name,
            scored_samples=scored,
            unscored_samples=len(own) - scored,
            metrics={key: EvalMetric(name=key, value=value) for key, value in _ends(each).items()},
        )
        for name in SHOWN
        if (each := found.get(ALL, {}).get(name)) is not None
    ]
    completed = sum(each.scored for each in tries)
    return EvalResults(total_samples=len(tries), completed_samples=completed, scores=scores)


def _ends(found: Estimate) -> dict[str, float]:
    if found.low is None or found.high is None:
        return {"mean": found.value}
    return {"mean": found.value, "low": found.low, "high": found.high}


def sample(
    one: Try, episode: EpisodeRecord, earlier: Sequence[EpisodeRecord], model: str, turn_limit: int | None
) -> EvalSample:
    """One try as a sample of Inspect AI, in the condensed form in which Inspect AI stores it."""
    from inspect_ai.log import EvalSample
    from inspect_ai.log._condense import condense_sample

    played = steps(episode)
    messages = [*inspect_messages.messages(episode, model)]
    outputs = [_output(step, messages, model) for step in played]
    lost = episode.outcome is Outcome.INFRA_ERROR
    return condense_sample(
        EvalSample(
            id=one.place.row_id or one.place.row,
            epoch=one.index + 1,
            input=messages[: len(first(episode))],
            target="",
            messages=messages,
            output=outputs[-1] if outputs else _nothing(model),
            scores=None if lost else scores(one),
            metadata=_metadata(one, episode),
            events=[*_events(episode, played, messages, outputs, model), *_scored(one, episode)],
            model_usage={model: _used(one.prompt_tokens, one.cached_tokens, one.sampled_tokens)},
            started_at=_time(episode.started_at),
            completed_at=_time(episode.finished_at),
            total_time=one.seconds,
            uuid=episode.episode_id,
            error=_error(episode.error or "lost") if lost else None,
            error_retries=[_retried(each) for each in earlier] or None,
            limit=_limit(one, turn_limit),
            turn_count=len(played),
        )
    )


def scores(one: Try) -> dict[str, Score]:
    """A try's scores, and the environment's own numbers."""
    from inspect_ai.scorer import Score

    found = {
        "external_score": Score(value=_scalar(one.external_score)),
        "success": Score(value=float(one.success)),
        "reward": Score(value=_scalar(one.reward)),
        "completion": Score(value=float(one.completion)),
    }
    return found | ({"metrics": Score(value=dict(one.metrics))} if one.metrics else {})


def _scalar(value: float | None) -> float:
    return float("nan") if value is None else value


def _metadata(one: Try, episode: EpisodeRecord) -> dict[str, Any]:
    return {
        "task": one.place.task,
        "row": one.place.row,
        "cluster": one.cluster,
        "episode_id": one.episode_id,
        "outcome": one.outcome.value,
        "error": episode.error,
        "prompt_tokens": one.prompt_tokens,
        "cached_tokens": one.cached_tokens,
        "sampled_tokens": one.sampled_tokens,
        "discarded_tokens": one.discarded_tokens,
        "sandbox_seconds": one.sandbox_seconds,
        "tool_calls": dict(one.tool_calls.by_tool),
        "failed_tool_calls": one.tool_calls.failed,
        "malformed_tool_calls": one.tool_calls.malformed,
        "turn_limit": one.turn_limit,
        "token_limit": one.token_limit,
        "forks": one.forks,
        "drifts": [drift.model_dump(mode="json") for drift in one.drifts],
    }


def _output(step: Step, messages: Sequence[ChatMessage], model: str) -> ModelOutput:
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput

    message = None if step.at is None else messages[step.at]
    if not isinstance(message, ChatMessageAssistant):
        note = "This turn is not in the conversation: it did not reach the agent."
        message = ChatMessageAssistant(content="", metadata={"note": note}, model=model)
    choice = ChatCompletionChoice(message=message, stop_reason=_stopped(step.turn, bool(message.tool_calls)))
    return ModelOutput(model=model, choices=[choice], usage=_usage(step.turn), time=step.ended - step.begun)


def _nothing(model: str) -> ModelOutput:
    from inspect_ai.model import ModelOutput

    return ModelOutput(model=model)


def _stopped(turn: Turn, calls: bool) -> Any:
    if turn.finish_reason == "length":
        return "max_tokens"
    return "tool_calls" if calls else "stop"


def _usage(turn: Turn) -> ModelUsage:
    return _used(turn.prompt_tokens - turn.cached_tokens, turn.cached_tokens, turn.sampled_tokens)


def _used(prompt: int, cached: int, sampled: int) -> ModelUsage:
    from inspect_ai.model import ModelUsage

    return ModelUsage(
        input_tokens=prompt,
        input_tokens_cache_read=cached,
        output_tokens=sampled,
        total_tokens=prompt + cached + sampled,
    )


def _events(
    episode: EpisodeRecord,
    played: Sequence[Step],
    messages: Sequence[ChatMessage],
    outputs: Sequence[ModelOutput],
    model: str,
) -> Iterator[Event]:
    """A model event for each turn, each followed by a tool event for each of the turn's tool calls."""
    from inspect_ai.event import ModelEvent
    from inspect_ai.model import GenerateConfig

    heard = len(first(episode))
    for step, output in zip(played, outputs, strict=True):
        heard = heard if step.at is None else step.at
        yield ModelEvent(
            uuid=f"{episode.episode_id}-t{step.turn.index}",
            timestamp=_moment(step.begun),
            working_start=step.begun - episode.started_at,
            completed=_moment(step.ended),
            model=model,
            input=list(messages[:heard]),
            tools=[],
            tool_choice="auto",
            config=GenerateConfig(),
            output=output,
        )
        for number, call in enumerate(step.calls):
            yield _tool_event(episode, step, call, f"{episode.episode_id}-t{step.turn.index}-{number}")
        heard += 1 + len(step.calls)


def _tool_event(episode: EpisodeRecord, step: Step, call: Call, identity: str) -> Event:
    from inspect_ai.event import ToolEvent

    return ToolEvent(
        uuid=identity,
        timestamp=_moment(call.begun),
        working_start=call.begun - episode.started_at,
        completed=_moment(call.ended),
        id=call.id,
        function=call.name,
        arguments=call.arguments,
        result=call.answer or "",
        error=inspect_messages.failure(call.answer or ""),
        failed=call.failed or None,
    )


def _scored(one: Try, episode: EpisodeRecord) -> Iterator[Event]:
    from inspect_ai.event import ScoreEvent

    if one.scored:
        for name, score in scores(one).items():
            yield ScoreEvent(
                uuid=f"{episode.episode_id}-{name}",
                timestamp=_moment(episode.finished_at),
                working_start=one.seconds,
                score=score,
                scorer=name,
            )


def _limit(one: Try, turn_limit: int | None) -> EvalSampleLimit | None:
    from inspect_ai.log import EvalSampleLimit

    if one.turn_limit and turn_limit is not None:
        return EvalSampleLimit(type="turn", limit=turn_limit)
    if one.token_limit:
        return EvalSampleLimit(type="token", limit=one.sampled_tokens)
    return None


def _error(message: str) -> EvalError:
    from inspect_ai.log import EvalError

    return EvalError(message=message, traceback=message, traceback_ansi=message)


def _retried(episode: EpisodeRecord) -> Any:
    from inspect_ai.log import EvalRetryError

    message = episode.error or "lost"
    return EvalRetryError(message=message, traceback=message, traceback_ansi=message)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _time(at: float) -> str:
    return _moment(at).isoformat()
