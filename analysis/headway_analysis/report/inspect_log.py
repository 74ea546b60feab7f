"""The episodes of a candidate as a log of Inspect AI, which `inspect view` shows turn by turn.

A sample is a try: its id is the row, its epoch the try. Episodes are written one by one, so that no more than
`AT_ONCE` of them are in memory. Inspect AI's own recorder writes the file: its version is pinned, since the
recorder is no public part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway_analysis.measures.candidate import ALL, of_task
from headway_analysis.measures.tries import TOOL_ERROR, Try
from headway_analysis.report.conversation import Call, Message, Step, arguments, first, steps, text
from headway_analysis.report.document import Finished, Standing, model_of
from headway_analysis.statistics.estimates import Estimate
from headway_api.records import EpisodeRecord, Outcome, Turn

if TYPE_CHECKING:
    from inspect_ai.event import Event
    from inspect_ai.log import EvalError, EvalResults, EvalSample, EvalSampleLimit, EvalSpec, EvalStats
    from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

AT_ONCE: Final = 64
SHOWN: Final = ("external_score", "success", "reward")
"""Measures that the log's head shows; the report has the others."""
Played = tuple[Try, EpisodeRecord, Sequence[EpisodeRecord]]
"""A try, its episode, and the earlier attempts at it."""


def write(
    path: Path,
    run: Finished,
    standing: Standing,
    found: Mapping[str, Mapping[str, Estimate]],
    played: Iterable[Played],
) -> None:
    """Write one candidate's log. Blocking, and to be called outside of an event loop.

    Args:
        path: the file, with the ending `.eval`.
        found: the candidate's estimates, task -> measure -> estimate.
        played: its tries with their episodes; they are read one by one.
    """
    asyncio.run(_write(path, run, standing, found, played))


async def _write(
    path: Path,
    run: Finished,
    standing: Standing,
    found: Mapping[str, Mapping[str, Estimate]],
    played: Iterable[Played],
) -> None:
    from inspect_ai.log._log import EvalPlan
    from inspect_ai.log._recorders.eval import EvalRecorder

    spec, recorder = _spec(run, standing), EvalRecorder(str(path.parent))
    await recorder.log_init(spec, str(path), clean=True)
    await recorder.log_start(spec, EvalPlan(name=run.job.name))
    waiting = recorder.data[recorder._log_file_key(spec)]
    for number, (one, episode, earlier) in enumerate(played, 1):
        await recorder.log_sample(
            spec, sample(one, episode, earlier, standing.name, run.job.spec.agent.turn_limit)
        )
        if number % AT_ONCE == 0:
            await waiting.write_buffered_samples()
    failed = standing.stage == "Failed"
    error = _error(f"{standing.reason}: {standing.message}") if failed else None
    await recorder.log_finish(
        spec,
        "error" if failed else "success",
        _stats(standing),
        _results(standing, found),
        None,
        error,
        header_only=True,
    )


def _spec(run: Finished, standing: Standing) -> EvalSpec:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalSpec

    job, spec = run.job, run.job.spec
    return EvalSpec(
        eval_id=f"{job.uid}-{standing.name}",
        run_id=job.uid,
        created=_time(_begun(standing.tries)),
        task=job.name,
        task_id=f"{job.namespace}/{job.name}",
        dataset=EvalDataset(name=job.name, location=spec.data.uri, samples=run.rows),
        model=standing.name,
        config=EvalConfig(epochs=spec.evaluation.group_size),
        metadata={"namespace": job.namespace, "uid": job.uid, "candidate": model_of(job, standing.name)},
    )


def _begun(tries: Sequence[Try]) -> float:
    return min((each.finished_at - each.seconds for each in tries), default=0.0)


def _stats(standing: Standing) -> EvalStats:
    from inspect_ai.log import EvalStats

    tries = standing.tries
    sums = (
        sum(each.prompt_tokens for each in tries),
        sum(each.cached_tokens for each in tries),
        sum(each.sampled_tokens for each in tries),
    )
    return EvalStats(
        started_at=_time(_begun(tries)),
        completed_at=_time(max((each.finished_at for each in tries), default=0.0)),
        model_usage={standing.name: _used(*sums)},
    )


def _results(standing: Standing, found: Mapping[str, Mapping[str, Estimate]]) -> EvalResults:
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    own = of_task(standing.tries, ALL)
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
    completed = sum(each.scored for each in standing.tries)
    return EvalResults(total_samples=len(standing.tries), completed_samples=completed, scores=scores)


def _ends(found: Estimate) -> dict[str, float]:
    if found.low is None or found.high is None:
        return {"mean": found.value}
    return {"mean": found.value, "low": found.low, "high": found.high}


def sample(
    one: Try, episode: EpisodeRecord, earlier: Sequence[EpisodeRecord], model: str, turn_limit: int | None
) -> EvalSample:
    """One try as Inspect's sample, condensed as Inspect stores it."""
    from inspect_ai.log import EvalSample
    from inspect_ai.log._condense import condense_sample

    played = steps(episode)
    messages = [*_messages(episode, model)]
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
    """What a try scored, and the environment's own numbers."""
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


def _messages(episode: EpisodeRecord, model: str) -> Iterator[ChatMessage]:
    said = {step.at for step in steps(episode)}
    names = {
        call.get("id"): call.get("function", {}).get("name")
        for message in episode.messages
        for call in message.get("tool_calls") or ()
    }
    for at, message in enumerate(episode.messages):
        yield _message(message, f"{episode.episode_id}-m{at}", model, at in said, names)


def _message(
    message: Message, identity: str, model: str, sampled: bool, names: Mapping[Any, Any]
) -> ChatMessage:
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )

    words, role = text(message), message.get("role")
    if role == "assistant":
        return ChatMessageAssistant(
            id=identity,
            content=_content(message, words),
            tool_calls=[*_tool_calls(message)] or None,
            source="generate" if sampled else "input",
            model=model if sampled else None,
        )
    if role == "tool":
        called = message.get("tool_call_id")
        name = names.get(called)
        return ChatMessageTool(
            id=identity, content=words, tool_call_id=called, function=name, error=_failure(words)
        )
    if role in ("system", "developer"):
        return ChatMessageSystem(id=identity, content=words)
    return ChatMessageUser(id=identity, content=words)


def _content(message: Message, words: str) -> Any:
    from inspect_ai.model import ContentReasoning, ContentText

    thought = message.get("reasoning_content")
    return [ContentReasoning(reasoning=str(thought)), ContentText(text=words)] if thought else words


def _tool_calls(message: Message) -> Iterator[Any]:
    from inspect_ai.tool import ToolCall

    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        yield ToolCall(
            id=str(call.get("id", "")), function=str(function.get("name", "")), arguments=arguments(function)
        )


def _failure(answer: str) -> Any:
    from inspect_ai.tool import ToolCallError

    if not answer.startswith(TOOL_ERROR):
        return None
    return ToolCallError("unknown", answer.removeprefix(TOOL_ERROR))


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
    """A model's event for each turn, and one for each tool call behind it."""
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
        error=_failure(call.answer or ""),
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


def _error(said: str) -> EvalError:
    from inspect_ai.log import EvalError

    return EvalError(message=said, traceback=said, traceback_ansi=said)


def _retried(episode: EpisodeRecord) -> Any:
    from inspect_ai.log import EvalRetryError

    said = episode.error or "lost"
    return EvalRetryError(message=said, traceback=said, traceback_ansi=said)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _time(at: float) -> str:
    return _moment(at).isoformat()
