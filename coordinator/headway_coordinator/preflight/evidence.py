"""The checks' input from baseline episodes: a group's record, and the answers of its sandboxes.

An episode's record does not show which tools the environment offered, or how long each call took. Both are
noted while the episode runs, and stored as an object of their own with the group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from headway_analysis.preflight.evidence import JudgeQuestion, Sampled, ToolResult
from headway_api.artifacts import Layout
from headway_api.bounds import KIB
from headway_api.document import Json
from headway_api.exits import JobError
from headway_api.record import Record
from headway_api.records import EpisodeRecord, GroupRecord
from headway_api.sandbox_api import Question, ResetReply, ToolReply
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read
from headway_coordinator.relative import leases_of

MAX_CALLS: Final = 512
"""The most tool calls that are stored for an episode."""
MAX_QUESTIONS: Final = 8
"""The most questions to judges that are stored for an episode or a group: one to each judge."""
LONGEST_QUESTION: Final = 128 * KIB
"""The most bytes of a stored question as JSON. Longer questions are not stored."""

Count = Callable[[str], int]
"""Counts a text's tokens with the model's own tokenizer."""


class ToolAnswer(Record):
    """A tool call, its answer, and how long it took."""

    name: str
    arguments: Json
    content: str
    seconds: float = Field(ge=0)
    done: bool = False


class AskedQuestion(Record):
    """A question that the environment asked a judge."""

    judge: str
    messages: list[Json]
    answer_schema: Json | None = None


class Answers(Record):
    """The answers of one episode's sandbox."""

    tools: list[Json] = Field(default_factory=list)
    """The tools that the environment offered, in OpenAI's form."""
    results: list[ToolAnswer] = Field(default_factory=list, max_length=MAX_CALLS)
    questions: list[AskedQuestion] = Field(default_factory=list, max_length=MAX_QUESTIONS)
    """The first question that the environment asked each judge."""


class GroupAnswers(Record):
    """The answers of a group's sandboxes."""

    episodes: dict[str, Answers] = Field(default_factory=dict)
    """Episode id -> the answers of its sandbox."""
    questions: list[AskedQuestion] = Field(default_factory=list, max_length=MAX_QUESTIONS)
    """The first question to each judge about the group as a whole."""


class Notes:
    """Notes the answers of one episode's sandbox."""

    def __init__(self) -> None:
        self.tools: list[Json] = []
        self.results: list[ToolAnswer] = []
        self.questions: dict[str, AskedQuestion] = {}
        """Judge's name -> the first question to it."""

    def began(self, reply: ResetReply) -> None:
        """Note the tools that the environment offers at reset."""
        self.tools = list(reply.tools)

    def called(self, name: str, arguments: Json, reply: ToolReply, seconds: float) -> None:
        """Note a tool's answer."""
        if len(self.results) < MAX_CALLS:
            self.results.append(
                ToolAnswer(
                    name=name, arguments=arguments, content=reply.content, seconds=seconds, done=reply.done
                )
            )

    def asked(self, questions: Sequence[Question]) -> None:
        """Note the first question to each judge."""
        for one in questions:
            if one.name in self.questions or len(self.questions) >= MAX_QUESTIONS:
                continue
            asked = AskedQuestion(judge=one.name, messages=[*one.messages], answer_schema=one.answer_schema)
            if len(json.dumps([asked.messages, asked.answer_schema])) <= LONGEST_QUESTION:
                self.questions[one.name] = asked

    @property
    def answers(self) -> Answers:
        """All notes, in the form in which they are stored."""
        questions = list(self.questions.values())
        return Answers(tools=self.tools, results=self.results, questions=questions)


class Notebook:
    """The notes of all episodes of this process."""

    def __init__(self) -> None:
        self._notes: dict[str, Notes] = {}

    def of(self, episode_id: str) -> Notes:
        """The notes of one episode's sandbox. They are created at the first call."""
        return self._notes.setdefault(episode_id, Notes())

    def taken(self, group: GroupRecord) -> GroupAnswers:
        """The answers of a group's sandboxes. They are removed from the notebook."""
        known = {episode.episode_id: self._notes.pop(episode.episode_id, None) for episode in group.episodes}
        whole = [name for name in self._notes if name.startswith(leases_of(group.group_id))]
        asked = {judge: one for name in whole for judge, one in self._notes.pop(name).questions.items()}
        return GroupAnswers(
            episodes={name: notes.answers for name, notes in known.items() if notes},
            questions=list(asked.values())[:MAX_QUESTIONS],
        )


def answers_of(store: Store, layout: Layout, group: GroupRecord) -> GroupAnswers:
    """The stored answers of a group's sandboxes; empty if they are lost or unreadable. Blocking."""
    try:
        return read(store, layout.preflight_answers(group.key), GroupAnswers)
    except (ObjectNotFoundError, JobError):
        return GroupAnswers()


def sampled(
    group: GroupRecord,
    answers: GroupAnswers,
    row: Mapping[str, Any],
    environment_seed: int,
    tokens: Count,
) -> Iterator[Sampled]:
    """Each episode of a group, in the form for the checks.

    An episode's tokens are removed unless it has malformed calls, which other parsers will try to parse.

    Args:
        group: the group's record.
        answers: the answers of the group's sandboxes.
        row: the dataset's row that the group was played on.
        environment_seed: the seed of the environment.
        tokens: counts a text's tokens.
    """
    trained = [row_tokens(episode) for episode in group.episodes]
    episodes = [without_tokens(episode) for episode in group.episodes]
    retried = [each.model_copy(update={"messages": [], "rows": []}) for each in group.discarded]
    group = group.model_copy(update={"episodes": episodes, "discarded": retried})
    about_group = [*map(_question, answers.questions)]
    for number, episode in enumerate(episodes):
        known = answers.episodes.get(episode.episode_id, Answers())
        results = [
            ToolResult(each.name, each.arguments, each.content, each.seconds, each.done)
            for each in known.results
        ]
        yield Sampled(
            record=episode,
            group=group,
            row=row,
            environment_seed=environment_seed,
            tools=known.tools,
            results=results,
            tool_tokens=[tokens(each.content) for each in results],
            prompt_tokens=episode.turns[0].prompt_tokens if episode.turns else 0,
            row_tokens=trained[number],
            malformed=malformed(episode),
            questions=[*map(_question, known.questions), *(() if number else about_group)],
        )


def _question(asked: AskedQuestion) -> JudgeQuestion:
    return JudgeQuestion(asked.judge, asked.messages, asked.answer_schema)


def row_tokens(episode: EpisodeRecord) -> int:
    """The number of tokens in those of the episode's training rows that have trained tokens."""
    return sum(len(row.tokens) for row in episode.rows if any(row.mask))


def without_tokens(episode: EpisodeRecord) -> EpisodeRecord:
    """The episode without its training rows, unless a tool call in it is malformed.

    There may be thousands of episodes, and lists of token ids take much more memory than text.
    """
    unread = any(turn.malformed_tool_calls for turn in episode.turns)
    return episode if unread else episode.model_copy(update={"rows": []})


def malformed(episode: EpisodeRecord) -> Sequence[str]:
    """The text of turns with malformed tool calls, as far as the recorded conversation has it."""
    answers = [message for message in episode.messages if message.get("role") == "assistant"]
    delivered = [turn for turn in episode.turns if turn.delivered]
    pairs = zip(delivered, answers, strict=False)
    return [str(message.get("content") or "") for turn, message in pairs if turn.malformed_tool_calls]
