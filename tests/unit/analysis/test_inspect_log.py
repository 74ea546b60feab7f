"""Logs for Inspect AI, read back with its own reader and its own program."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import finished_evaluation as job
import pytest
from inspect_ai.log import EvalLog, EvalSample, read_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool

from headway_analysis.report import inspect_log
from headway_analysis.report.conversation import first, steps
from headway_analysis.report.document import CandidateTries
from headway_analysis.report.inspect_log import PlayedEpisode
from headway_api.records import EpisodeRecord, Outcome

NAME, ROWS = "tuned", 10


def standing() -> CandidateTries:
    return next(each for each in job.finished().standings if each.name == NAME)


def played() -> Iterator[PlayedEpisode]:
    by_episode = {each.episode_id: each for each in job.tries()[NAME]}
    for group in job.groups(NAME)[:ROWS]:
        for episode in group.episodes:
            earlier = [each for each in group.discarded if each.index == episode.index]
            yield by_episode[episode.episode_id], episode, earlier


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / f"{NAME}.eval"
    inspect_log.write(path, job.finished(), standing(), job.compared().estimates[NAME], played())
    return path


@pytest.fixture(scope="module")
def log(path: Path) -> EvalLog:
    return read_eval_log(str(path), resolve_attachments=True)


def samples(log: EvalLog) -> Iterator[tuple[EvalSample, PlayedEpisode]]:
    assert log.samples is not None
    by_episode = {episode.episode_id: (one, episode, earlier) for one, episode, earlier in played()}
    assert len(log.samples) == len(by_episode)
    return ((sample, by_episode[str(sample.uuid)]) for sample in log.samples)


def test_each_try_is_a_sample_of_its_row_and_epoch(log: EvalLog) -> None:
    for sample, (one, _, earlier) in samples(log):
        assert (sample.id, sample.epoch) == (one.place.row, one.index + 1)
        assert len(sample.error_retries or []) == len(earlier)
    assert log.eval.config.epochs == job.TRIES
    assert log.eval.dataset.samples == job.ROWS


def test_a_log_has_the_conversation_message_by_message(log: EvalLog) -> None:
    for sample, (_, episode, _) in samples(log):
        assert [message.role for message in sample.messages] == [m["role"] for m in episode.messages]
        assert [message.text for message in sample.messages] == [m["content"] for m in episode.messages]
        assert [m.role for m in sample.input if not isinstance(m, str)] == ["system", "user"]
        called = [
            (call.id, call.function, call.arguments)
            for message in sample.messages
            if isinstance(message, ChatMessageAssistant)
            for call in message.tool_calls or []
        ]
        made = [call for message in episode.messages for call in message.get("tool_calls", [])]
        assert called == [(c["id"], c["function"]["name"], {"key": "it"}) for c in made]
        failed = [m for m in sample.messages if isinstance(m, ChatMessageTool) and m.error is not None]
        assert all(message.text.startswith("error: ") for message in failed)


def test_every_turn_and_tool_call_is_an_event_with_its_tokens(log: EvalLog) -> None:
    for sample, (_, episode, _) in samples(log):
        turns = [event for event in sample.events if event.event == "model"]
        assert [event.output.usage.output_tokens for event in turns if event.output.usage] == [
            turn.sampled_tokens for turn in episode.turns
        ]
        heard = [len(event.input) for event in turns]
        assert heard == [2 * (number + 1) for number in range(len(episode.turns))]
        tools = [event for event in sample.events if event.event == "tool"]
        assert [event.function for event in tools] == [
            call.name for step in steps(episode) for call in step.calls
        ]


def test_scores_metrics_and_outcome_are_those_of_the_try(log: EvalLog) -> None:
    for sample, (one, _, _) in samples(log):
        assert sample.metadata["outcome"] == one.outcome.value
        if one.outcome is Outcome.INFRA_ERROR:
            assert sample.scores is None
            assert sample.error is not None
            continue
        assert sample.error is None
        assert sample.scores is not None
        assert sample.scores["external_score"].value == one.external_score
        assert sample.scores["reward"].value == one.reward
        assert sample.scores["success"].value == float(one.success)
        assert sample.scores["metrics"].value == one.metrics
        assert (sample.limit is not None) == (one.turn_limit or one.token_limit)


def test_the_head_has_the_reports_measures(log: EvalLog) -> None:
    assert log.results is not None
    shown = {score.name: {name: m.value for name, m in score.metrics.items()} for score in log.results.scores}
    for name in inspect_log.SHOWN:
        found = job.compared().estimates[NAME]["all"][name]
        assert shown[name] == {"mean": found.value, "low": found.low, "high": found.high}
    usage = log.stats.model_usage[NAME]
    assert usage.output_tokens == sum(each.sampled_tokens for each in job.tries()[NAME])


def test_inspects_own_program_reads_a_log(path: Path) -> None:
    command = [str(Path(sys.executable).with_name("inspect")), "log", "dump", str(path)]
    dumped = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)
    assert dumped["status"] == "success"
    assert len(dumped["samples"]) == ROWS * job.TRIES


def test_a_candidate_that_failed_halfway_has_a_log_that_says_so(tmp_path: Path) -> None:
    some = dataclasses.replace(
        standing(), stage="Failed", reason="ServersLost", message="no server", tries=job.tries()[NAME][:2]
    )
    kept = {each.episode_id for each in some.tries}
    path = tmp_path / "tuned.eval"
    inspect_log.write(path, job.finished(), some, {}, (p for p in played() if p[0].episode_id in kept))
    log = read_eval_log(str(path))
    assert (log.status, len(log.samples or [])) == ("error", 2)
    assert log.error is not None
    assert "no server" in log.error.message


def episode(messages: list[dict[str, object]], undelivered: int = 0) -> EpisodeRecord:
    """Three turns, of which one may not have been delivered to the agent."""
    found = next(e for _, e, _ in played() if len(e.turns) == 3)
    turns = [t.model_copy(update={"delivered": t.index >= undelivered}) for t in found.turns]
    return found.model_copy(update={"messages": messages, "turns": turns})


def test_a_turn_that_did_not_reach_the_agent_has_no_message() -> None:
    message = {"role": "assistant", "content": "gold"}
    found = steps(episode([{"role": "user", "content": "?"}, message, message], undelivered=1))
    assert [step.at for step in found] == [None, 1, 2]


def test_an_example_that_an_environment_shows_is_input() -> None:
    example = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "one"}]
    message = {"role": "assistant", "content": "gold"}
    one = episode([*example, {"role": "user", "content": "?"}, message, message, message])
    assert len(first(one)) == 3


def test_an_episode_without_a_message_of_the_model_is_written() -> None:
    one = episode([{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image", "x": 1}]}])
    assert [step.message for step in steps(one)] == [None, None, None]
    sample = inspect_log.sample(job.tries()[NAME][0], one, [], NAME, 4)
    assert sample.messages[0].text == '?\n{"type": "image", "x": 1}'
    assert sum(event.event == "model" for event in sample.events) == 3
