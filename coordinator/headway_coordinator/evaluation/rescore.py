"""Scores the episodes of an earlier run again: the same tool calls in a fresh sandbox, without sampling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway_api.artifacts import GROUPS, written
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, GroupRecord, Outcome, Turn
from headway_api.spec.evaluation import CandidateRescore
from headway_api.store import Denied, NotFound, Store
from headway_api.stored import read_each
from headway_coordinator import spool
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.dataset import position_of
from headway_coordinator.evaluation.candidates import field_of
from headway_coordinator.faults import AgentFault, CandidateFault, InfraFault
from headway_coordinator.gateway.asks import Session

Stored = Mapping[tuple[int, int], EpisodeRecord]
"""(position of the row, try) -> the recorded episode."""


def stored(name: str, asked: CandidateRescore, store: Store) -> Stored:
    """The episodes to score again, including those of rows without a scored episode.

    Blocking: run it in a thread.

    Raises:
        CandidateFault: there is nothing readable in the folder.
    """
    root, where = asked.uri.rstrip("/"), field_of(name, "rescore.uri")
    what = f"evaluation/{asked.candidate}" if asked.candidate is not None else f"validation/{asked.step:06d}"
    folder = f"{root}/trajectories/{what}"
    try:
        groups = [*read_each(store, written(store.list(folder), folder, GROUPS), spool.decode)]
        # The last one of a row counts, so an answered group comes after the others.
        found = dict(_episodes([*_unanswered(root, asked, store), *groups]))
    except Denied as error:
        text = f"{error}; let the credentials of spec.output read it"
        raise CandidateFault("RunUnreadable", text, where) from error
    except (NotFound, JobError, ValueError) as error:
        text = f"{folder} holds no episodes that can be read: {error}"
        raise CandidateFault("RunUnreadable", text, where) from error
    if not groups:
        text = f"no episodes lie at {folder}; name the folder of a run, and a candidate or step that it has"
        raise CandidateFault("RunMissing", text, where)
    return found


def _unanswered(root: str, asked: CandidateRescore, store: Store) -> Iterator[GroupRecord]:
    """The same run's groups without a scored episode. All candidates share their folder."""
    of_candidate = asked.candidate is not None
    ids = f"e-{asked.candidate}-" if of_candidate else f"v{asked.step:06d}-"
    folder = f"{root}/trajectories/failed"
    uris = written(store.list(folder), folder, GROUPS)
    mine = [uri for uri in uris if uri.rpartition("/")[2].startswith(ids)]
    for group in read_each(store, mine, spool.decode):
        if not of_candidate or group.candidate == asked.candidate:
            yield group


def _episodes(groups: Sequence[GroupRecord]) -> Iterator[tuple[tuple[int, int], EpisodeRecord]]:
    """Episodes of the run's own rows: suites are not scored again."""
    for group in groups:
        if group.suite is None:
            for episode in group.episodes:
                yield (position_of(group.group_id), episode.index), episode


@dataclass(frozen=True)
class Rescorer:
    """An agent that repeats a recorded episode, so that the environment judges it again."""

    name: str
    """The candidate's name."""
    episodes: Stored
    reports_reward: bool
    """Whether the run's agent reported its own reward, which the environment uses."""
    lost: set[str] = field(default_factory=set)
    """Ids of the episodes whose record has only a failure, so that none is retried."""

    async def play(self, context: EpisodeContext) -> AgentResult:
        """Run the recorded tool calls again, and have the environment judge the recorded conversation.

        Raises:
            AgentFault: the recorded agent failed.
            InfraFault: the record has only a failure of the platform.
            CandidateFault: the run has no such episode, or made it on another row.
        """
        before = self._recorded(context.session.episode_id)
        if before.outcome is Outcome.INFRA_ERROR:
            self.lost.add(context.session.episode_id)
            raise InfraFault(f"the recorded episode is no answer of the model: {before.error}")
        self._require_same_row(context.first, before)
        context.messages[:] = before.messages
        retell(context.session, before.turns)
        for name, arguments in calls(before.messages):
            await context.sandbox.tool(name, arguments)
        if before.outcome is Outcome.AGENT_ERROR:
            raise AgentFault(before.error or "the recorded agent failed")
        reported = [before.reward] if self.reports_reward and before.reward is not None else None
        # The record does not say which metrics came with the agent's reward, so all are reported again.
        metrics = before.metrics if reported else {}
        return AgentResult(before.outcome is Outcome.TRUNCATED, before.error, reported, metrics)

    def _recorded(self, episode_id: str) -> EpisodeRecord:
        group_id, index, _ = episode_id.rsplit("-", 2)
        place = position_of(group_id), int(index)
        if (found := self.episodes.get(place)) is None:
            text = (
                f"the run has no episode of row {place[0]}, try {place[1]}; give spec.data and "
                "spec.evaluation.groupSize as the run had them, or a smaller spec.evaluation.maxRows"
            )
            raise CandidateFault("RunIncomplete", text, field_of(self.name, "rescore.uri"))
        return found

    def _require_same_row(self, first: Sequence[Mapping[str, Any]], before: EpisodeRecord) -> None:
        """Require that the environment begins the row with the recorded user messages."""
        asked = [message.get("content") for message in first if message.get("role") == "user"]
        said = [message.get("content") for message in before.messages if message.get("role") == "user"]
        if said[: len(asked)] != asked:
            text = "the run's rows begin with other words; name the dataset that the run was made on"
            raise CandidateFault("RowsDiffer", text, "spec.data.uri")


def retell(session: Session, turns: Sequence[Turn]) -> None:
    """Add recorded turns to a session, without their tokens, which stay with the run."""
    session.turns = list(turns)
    session.nodes = list(range(len(turns)))
    session.unseen = {node for node, turn in enumerate(turns) if not turn.delivered}


def calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The executed tool calls, in order: those that a tool message answers.

    Raises:
        InfraFault: a recorded call's arguments are not a JSON object.
    """
    answered = {message.get("tool_call_id") for message in messages if message.get("role") == "tool"}
    for message in messages:
        for call in message.get("tool_calls") or ():
            if call.get("id") not in answered:
                continue
            function = call["function"]
            try:
                arguments = json.loads(function["arguments"])
            except ValueError as error:
                raise InfraFault(f"a recorded tool call's arguments are no JSON: {error}") from error
            yield function["name"], arguments
