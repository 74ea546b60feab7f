"""Scores the episodes of an earlier run again: repeats the tool calls in a new sandbox, without sampling."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headway_analysis.measures.tries import played_messages, sampled_messages, text_of
from headway_api.artifacts import GROUPS, written
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, GroupRecord, Outcome, Purpose, Turn
from headway_api.seeds import seed
from headway_api.spec.candidate import CandidateRescore
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError
from headway_api.stored import read_each
from headway_coordinator import spool
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.dataset import position_of
from headway_coordinator.evaluation.candidates import field_of
from headway_coordinator.faults import AgentError, CandidateError, InfraError
from headway_coordinator.gateway.asks import Session

Stored = Mapping[tuple[int, int], EpisodeRecord]
"""(index of the row, try) -> the recorded episode, without its tokens."""


def stored(name: str, asked: CandidateRescore, store: Store) -> Stored:
    """The episodes to score again, including those of rows without a scored episode.

    Blocking: run it in a thread.

    Raises:
        CandidateError: the folder has no such episodes, or they cannot be read.
    """
    root, where = asked.uri.rstrip("/"), field_of(name, "rescore.uri")
    folder = f"{root}/trajectories/{_what(asked)}"
    try:
        uris = [uri for uri in written(store.list(folder), folder, GROUPS) if _is_asked(uri, asked)]
        # The last episode for each key counts, so answered groups are read after unanswered ones.
        found = dict(_episodes(_unanswered(root, asked, store)))
        found |= _episodes(read_each(store, uris, spool.decode))
    except StoreDeniedError as error:
        text = f"{error}; let the credentials of spec.output read it"
        raise CandidateError("RunUnreadable", text, where) from error
    except (ObjectNotFoundError, JobError, ValueError) as error:
        text = f"{folder} holds no episodes that can be read: {error}"
        raise CandidateError("RunUnreadable", text, where) from error
    if not uris:
        text = (
            f"there are no episodes at {folder}; name the folder of a run, and one of its candidates, "
            "validated steps or epochs"
        )
        raise CandidateError("RunMissing", text, where)
    return found


def _what(asked: CandidateRescore) -> str:
    """The folder with the groups, relative to the run's trajectories."""
    if asked.epoch is not None:
        return "train"
    return f"evaluation/{asked.candidate}" if asked.candidate is not None else f"validation/{asked.step:06d}"


def _is_asked(uri: str, asked: CandidateRescore) -> bool:
    """Whether a group belongs to the epoch that the candidate names, if any. Epochs share a folder."""
    return asked.epoch is None or uri.rpartition("/")[2].startswith(f"t{asked.epoch}-")


def _unanswered(root: str, asked: CandidateRescore, store: Store) -> Iterator[GroupRecord]:
    """The run's groups without a scored episode. The groups of all candidates share one folder."""
    if asked.epoch is not None:  # training keeps no such groups
        return
    of_candidate = asked.candidate is not None
    ids = f"e-{asked.candidate}-" if of_candidate else f"v{asked.step:06d}-"
    folder = f"{root}/trajectories/failed"
    uris = written(store.list(folder), folder, GROUPS)
    mine = [uri for uri in uris if uri.rpartition("/")[2].startswith(ids)]
    for group in read_each(store, mine, spool.decode):
        if not of_candidate or group.candidate == asked.candidate:
            yield group


def _episodes(groups: Iterable[GroupRecord]) -> Iterator[tuple[tuple[int, int], EpisodeRecord]]:
    """Episodes of the run's own rows: suites are not scored again."""
    for group in groups:
        if group.suite is None:
            for episode in group.episodes:
                # Training shuffles its rows. In validations and evaluations the position is the row.
                row = group.row if group.purpose is Purpose.TRAIN else position_of(group.group_id)
                yield (row, episode.index), episode.model_copy(update={"rows": []})


@dataclass(frozen=True)
class Rescorer:
    """An agent that repeats a recorded episode, so that the environment judges it again."""

    name: str
    """The candidate's name."""
    asked: CandidateRescore
    episodes: Stored
    reports_reward: bool
    """Whether the run's agent reported its own reward, which the environment uses."""
    own_loop: bool = False
    """Whether the run's agent wrote the conversations itself. If so, they may begin with any message."""
    lost: set[str] = field(default_factory=set)
    """Ids of the episodes whose record has only a failure. They are not retried."""
    differing: dict[str, int] = field(default_factory=dict)
    """Episode id -> number of tool answers that differ from the recorded ones. `counted` removes entries."""

    async def play(self, context: EpisodeContext) -> AgentResult:
        """Run the recorded tool calls again, and have the environment judge the recorded conversation.

        Raises:
            AgentError: the recorded agent failed.
            InfraError: the record has only a failure of the platform.
            CandidateError: the run has no such episode, or played it on another row.
        """
        before = self._recorded(context.session.episode_id)
        if before.outcome is Outcome.INFRA_ERROR:
            self.lost.add(context.session.episode_id)
            raise InfraError(f"the recorded episode failed, so it has no answer of the model: {before.error}")
        if not self.own_loop:
            self._require_same_row(context.first, before)
        context.messages[:] = before.messages
        add_recorded(context.session, before.turns)
        differing = 0
        for call in calls(before):
            reply = await context.sandbox.tool(call.name, call.arguments)
            differing += reply.content != call.answer
        self.differing[context.session.episode_id] = differing
        if before.outcome is Outcome.AGENT_ERROR:
            raise AgentError(before.error or "the recorded agent failed")
        reported = [before.reward] if self.reports_reward and before.reward is not None else None
        # The record does not say which metrics came with the agent's reward, so all are reported again.
        metrics = before.metrics if reported else {}
        return AgentResult(before.outcome is Outcome.TRUNCATED, before.error, reported, metrics)

    def counted(self, record: EpisodeRecord) -> EpisodeRecord:
        """The sealed episode, with the number of tool answers that differ from the recorded ones.

        A truncated episode keeps the recorded reason.
        """
        update: dict[str, Any] = {"differing_answers": self.differing.pop(record.episode_id, 0)}
        before = self.episodes.get(_place(record.episode_id))
        if before is not None and before.outcome is record.outcome is Outcome.TRUNCATED:
            update |= {"timed_out": before.timed_out, "token_limited": before.token_limited}
        return record.model_copy(update=update)

    def environment_seed(self, job_seed: int, episode_id: str) -> int | None:
        """The seed that the environment had in the run; None if the run has no such episode."""
        if (before := self.episodes.get(_place(episode_id))) is None:
            return None
        asked = self.asked
        purpose = Purpose.EVALUATION if asked.candidate is not None else Purpose.VALIDATION
        purpose = purpose if asked.epoch is None else Purpose.TRAIN
        return seed(job_seed, "environment", purpose, position_of(before.group_id))

    def _recorded(self, episode_id: str) -> EpisodeRecord:
        place = _place(episode_id)
        if (found := self.episodes.get(place)) is None:
            if self.asked.epoch is not None:
                self.lost.add(episode_id)
                raise InfraError(
                    f"training has no episode of row {place[0]}, try {place[1]} in epoch {self.asked.epoch}"
                )
            text = (
                f"the run has no episode of row {place[0]}, try {place[1]}; write spec.data and "
                "spec.evaluation.groupSize as in the run, or a smaller spec.evaluation.maxRows"
            )
            raise CandidateError("RunIncomplete", text, field_of(self.name, "rescore.uri"))
        return found

    def _require_same_row(self, first: Sequence[Mapping[str, Any]], before: EpisodeRecord) -> None:
        """Require that the environment begins the row with the recorded user messages."""
        asked = [message.get("content") for message in first if message.get("role") == "user"]
        questions = [message.get("content") for message in before.messages if message.get("role") == "user"]
        if questions[: len(asked)] != asked:
            text = "the rows of the run begin with other messages; name the dataset of the run"
            raise CandidateError("RowsDiffer", text, "spec.data.uri")


def _place(episode_id: str) -> tuple[int, int]:
    """The row and the try of an episode of this job, which are a key of `Stored`."""
    group_id, index, _ = episode_id.rsplit("-", 2)
    return position_of(group_id), int(index)


def add_recorded(session: Session, turns: Sequence[Turn]) -> None:
    """Add recorded turns to a session, without their tokens, which stay with the run."""
    session.turns = list(turns)
    session.nodes = list(range(len(turns)))
    session.unseen = {node for node, turn in enumerate(turns) if not turn.delivered}


class RecordedCall(NamedTuple):
    """A tool call that was executed, and its answer."""

    name: str
    arguments: dict[str, Any]
    answer: str


def calls(episode: EpisodeRecord) -> Iterator[RecordedCall]:
    """The executed tool calls, in order. These are the model's calls that a tool message answers.

    Calls in the environment's first messages are examples, which no tool executed. Agents with their own loop
    may use an id twice. Then the first answer with the id belongs to the first call, and so on.

    Raises:
        InfraError: a recorded call's arguments are not a JSON object.
    """
    answers: dict[Any, deque[str]] = defaultdict(deque)
    for message in played_messages(episode):
        if message.get("role") == "tool":
            answers[message.get("tool_call_id")].append(text_of(message))
    for message in sampled_messages(episode):
        for call in message.get("tool_calls") or ():
            if not (left := answers.get(call.get("id"))):
                continue
            function = call["function"]
            try:
                arguments = json.loads(function["arguments"])
            except ValueError as error:
                raise InfraError(f"a recorded tool call's arguments are not JSON: {error}") from error
            yield RecordedCall(function["name"], arguments, left.popleft())
