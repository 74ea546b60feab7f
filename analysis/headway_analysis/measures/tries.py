"""One row of `results.parquet`: what one candidate did on one try at one dataset row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

from headway_analysis.measures.episodes import success
from headway_api import prices
from headway_api.records import Drift, EpisodeRecord, GroupRecord, Outcome, SampledBy, Turn, UsageClass

TOOL_ERROR: Final = "error: "
"""How a tool's answer begins if the tool failed."""
COMPLETION: Final = "completion"
"""An environment's metric of this name replaces the platform's own judgment whether an answer was given."""
FORMAT: Final = "format"
"""An environment's metric of this name says whether the answer has the form that was asked for."""


@dataclass(frozen=True)
class TryPlace:
    """Where a try belongs."""

    candidate: str
    row: int
    """Index of the dataset row; samples of suites come after the rows."""
    task: str = ""
    """The row's value in the column of tasks; empty if no column names tasks. For a sample: its suite."""
    row_id: str = ""
    """The row's own name, if it has one."""
    cluster: str | None = None
    """The row's value in `clusterColumn`. None: the row is a cluster of its own."""
    suite: bool = False
    """Whether it is a sample of a suite. Then `task` is the suite's name."""


@dataclass(frozen=True)
class Rules:
    """The settings of the spec by which a try is judged."""

    threshold: float = 1.0
    """A try succeeds with this score or more."""
    max_turns: int | None = None
    """Maximum turns of the built-in agent. None for an agent with a loop of its own."""


@dataclass(frozen=True)
class ToolCalls:
    """Tool calls of one episode."""

    by_tool: Mapping[str, int]
    """Calls that could be read, by the tool's name."""
    failed: int
    """Calls among them that the tool answered with an error."""
    malformed: int
    """Calls that could not be read."""

    @property
    def readable(self) -> int:
        """Calls that could be read."""
        return sum(self.by_tool.values())

    @property
    def total(self) -> int:
        """All attempts at a call."""
        return self.readable + self.malformed


class Used(NamedTuple):
    """The tokens that some turns used."""

    prompt_tokens: int = 0
    """Prompt tokens that the engine computed."""
    cached_tokens: int = 0
    sampled_tokens: int = 0

    @property
    def discarded(self) -> int:
        """Tokens that the ledger bills if these turns are discarded."""
        return self.prompt_tokens + self.sampled_tokens


NO_TOKENS: Final = Used()


@dataclass(frozen=True)
class Attempt:
    """What one attempt at a try used."""

    prompt_tokens: int
    """Prompt tokens that the engine computed."""
    cached_tokens: int
    """Prompt tokens that the engine found in its cache."""
    sampled_tokens: int
    finished_at: float
    """Unix time; its day decides the prices."""
    uncounted_turns: int = 0
    """Turns whose cost an endpoint did not report."""
    undelivered: Used = NO_TOKENS
    """The part of these tokens that belongs to turns which never reached the agent."""

    @property
    def day(self) -> date:
        """The UTC day on which the attempt ended."""
        return datetime.fromtimestamp(self.finished_at, UTC).date()

    def billed(self, sampled_by: SampledBy, lost: bool) -> dict[str, float]:
        """The tokens of this attempt that the ledger bills, by usage class."""
        if sampled_by == "nobody":
            return {}
        if sampled_by == "endpoint":
            return {
                UsageClass.ENDPOINT_PROMPT.value: self.prompt_tokens + self.cached_tokens,
                UsageClass.ENDPOINT_SAMPLE.value: self.sampled_tokens,
            }
        if lost:
            return {UsageClass.DISCARDED.value: self.prompt_tokens + self.sampled_tokens}
        unread = self.undelivered
        return {
            UsageClass.EVALUATION_PREFILL.value: self.prompt_tokens - unread.prompt_tokens,
            UsageClass.EVALUATION_CACHED_PREFILL.value: self.cached_tokens - unread.cached_tokens,
            UsageClass.EVALUATION_SAMPLE.value: self.sampled_tokens - unread.sampled_tokens,
            UsageClass.DISCARDED.value: unread.discarded,
        }


@dataclass(frozen=True)
class Try:
    """One try of one candidate at one row. `docs/evaluation.md` defines every field."""

    place: TryPlace
    index: int
    """Which try at the row, from 0."""
    episode_id: str
    outcome: Outcome
    reward: float | None
    """None exactly when the outcome is InfraError."""
    external_score: float | None
    success: bool
    """The external score reaches the threshold."""
    success_by_reward: bool
    """The reward reaches the threshold: MTRL's judgment."""
    completion: float
    """1 if an answer was emitted, right or wrong; the environment's own number if it reports one."""
    format: float | None
    """The environment's metric `format`; None if it reports none."""
    metrics: Mapping[str, float]
    """All of the environment's own numbers."""
    turns: int
    prompt_tokens: int
    """Prompt tokens that the engine computed."""
    cached_tokens: int
    """Prompt tokens that the engine found in its cache."""
    sampled_tokens: int
    discarded_tokens: int
    """Tokens computed and sampled for nothing: of earlier attempts, of this one if it is InfraError, and of
    turns that never reached the agent."""
    seconds: float
    """Seconds from the episode's start to its end."""
    sandbox_seconds: float
    tool_calls: ToolCalls
    turn_limit: bool | None
    """The episode used all of its turns. None: the limit is unknown, because the agent has its own loop."""
    token_limit: bool
    finished_at: float
    """Unix time; its day decides the prices."""
    sampled_by: SampledBy = "servers"
    """As `GroupRecord.sampled_by`. If `nobody` sampled, the tokens are those of the run to score again."""
    model: str | None = None
    """The model whose prices apply, as `GroupRecord.model`."""
    uncounted_turns: int = 0
    """Turns whose cost an endpoint did not report, those of lost attempts included. Their tokens
    are 0 in every count."""
    drifts: tuple[Drift, ...] = ()
    """Why turns began a training row of their own, as `EpisodeRecord.drifts`."""
    forks: int = 0
    """Turns that began a training row of their own."""
    differing_answers: int = 0
    """Tool calls whose answer differs from the run that is scored again, as in the episode's record."""
    earlier: tuple[Attempt, ...] = ()
    """Attempts before this one, which were lost."""
    undelivered: Used = NO_TOKENS
    """The part of this attempt's tokens that belongs to turns which never reached the agent."""

    @property
    def scored(self) -> bool:
        """Whether the try takes part in means: every outcome but InfraError."""
        return self.outcome is not Outcome.INFRA_ERROR

    @property
    def bill_known(self) -> bool:
        """Whether the token counts of all billed turns are known."""
        return not self.uncounted_turns or self.sampled_by == "nobody"

    @property
    def cluster(self) -> str:
        """Name of the cluster: from the row's value in `clusterColumn`, or from the row's index."""
        return f"row {self.place.row}" if self.place.cluster is None else f"cluster {self.place.cluster}"

    @property
    def usage(self) -> dict[str, float]:
        """What the ledger bills for the try, by class, and by model as `prices.of` names it."""
        used: dict[str, float] = {}
        for amounts in self.usage_by_day.values():
            _add(used, amounts)
        return used

    @property
    def usage_by_day(self) -> dict[date, dict[str, float]]:
        """The try's bill by UTC day: an earlier attempt may have ended on another day, at other prices."""
        counts = (self.prompt_tokens, self.cached_tokens, self.sampled_tokens, self.finished_at)
        last = Attempt(*counts, undelivered=self.undelivered)
        days: dict[date, dict[str, float]] = {}
        for attempt in (*self.earlier, last):
            lost = attempt is not last or not self.scored
            billed = attempt.billed(self.sampled_by, lost)
            amounts = {prices.of(name, self.model): tokens for name, tokens in billed.items()}
            _add(days.setdefault(attempt.day, {}), amounts)
        if self.scored:
            days[last.day][UsageClass.SANDBOX_SECONDS.value] = self.sandbox_seconds
        return {day: {name: used for name, used in amounts.items() if used} for day, amounts in days.items()}


def _add(used: dict[str, float], amounts: Mapping[str, float]) -> None:
    for name, amount in amounts.items():
        used[name] = used.get(name, 0) + amount


def tries_of(group: GroupRecord, place: TryPlace, rules: Rules) -> list[Try]:
    """A group's tries: for each index, the final attempt with the earlier attempts that were lost."""
    return [
        a_try(
            episode,
            place,
            rules,
            [earlier for earlier in group.discarded if earlier.index == episode.index],
            group.sampled_by,
            group.model,
        )
        for episode in group.episodes
    ]


def a_try(
    episode: EpisodeRecord,
    place: TryPlace,
    rules: Rules,
    retried: Sequence[EpisodeRecord] = (),
    sampled_by: SampledBy = "servers",
    model: str | None = None,
) -> Try:
    """One sealed episode as a try; `retried` are the earlier attempts at it."""
    earlier, used = tuple(map(_attempt, retried)), _attempt(episode)
    scored = episode.outcome is not Outcome.INFRA_ERROR
    lost = earlier if scored else (*earlier, used)
    unread = used.undelivered if scored and sampled_by == "servers" else NO_TOKENS
    reward = episode.reward
    return Try(
        place=place,
        index=episode.index,
        episode_id=episode.episode_id,
        outcome=episode.outcome,
        reward=reward,
        external_score=episode.score,
        success=success(episode, rules.threshold),
        success_by_reward=reward is not None and reward >= rules.threshold,
        completion=episode.metrics.get(COMPLETION, float(answered(episode))),
        format=episode.metrics.get(FORMAT),
        metrics=dict(episode.metrics),
        turns=len(episode.turns),
        prompt_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        sampled_tokens=used.sampled_tokens,
        discarded_tokens=sum(each.prompt_tokens + each.sampled_tokens for each in lost) + unread.discarded,
        seconds=episode.finished_at - episode.started_at,
        sandbox_seconds=episode.sandbox_seconds,
        tool_calls=tool_calls(episode),
        turn_limit=None if rules.max_turns is None else at_turn_limit(episode, rules.max_turns),
        token_limit=at_token_limit(episode, rules.max_turns),
        finished_at=episode.finished_at,
        sampled_by=sampled_by,
        model=model,
        uncounted_turns=sum(each.uncounted_turns for each in (*earlier, used)),
        drifts=tuple(episode.drifts),
        forks=episode.forks,
        differing_answers=episode.differing_answers,
        earlier=earlier,
        undelivered=unread,
    )


def _attempt(episode: EpisodeRecord) -> Attempt:
    """The tokens that engines computed and sampled for an episode."""
    return Attempt(
        *_used(episode.turns),
        finished_at=episode.finished_at,
        uncounted_turns=sum(not turn.counted for turn in episode.turns),
        undelivered=_used([turn for turn in episode.turns if not turn.delivered]),
    )


def _used(turns: Sequence[Turn]) -> Used:
    return Used(
        prompt_tokens=sum(turn.prompt_tokens - turn.cached_tokens for turn in turns),
        cached_tokens=sum(turn.cached_tokens for turn in turns),
        sampled_tokens=sum(turn.sampled_tokens for turn in turns),
    )


def answered(episode: EpisodeRecord) -> bool:
    """Whether the episode is Completed and ends with an answer.

    An answer is an assistant's message with words and without a tool call, or a tool call by which the
    environment ended the episode. A last turn whose tool call could not be read is not an answer.
    """
    if episode.outcome is not Outcome.COMPLETED or not episode.messages:
        return False
    last = episode.messages[-1]
    if last.get("role") == "tool":
        return True
    delivered = [turn for turn in episode.turns if turn.delivered]
    unread = bool(delivered) and delivered[-1].malformed_tool_calls > 0
    return last.get("role") == "assistant" and not unread and not _calls(last) and bool(text_of(last).strip())


def at_turn_limit(episode: EpisodeRecord, max_turns: int | None) -> bool:
    """Whether the episode was truncated because it had used all its turns."""
    whole = all(turn.finish_reason != "length" for turn in episode.turns)
    reached = max_turns is not None and len(episode.turns) >= max_turns
    return episode.outcome is Outcome.TRUNCATED and reached and whole


def at_token_limit(episode: EpisodeRecord, max_turns: int | None) -> bool:
    """Whether a limit on tokens cut a turn or the episode, or the context had no room for another turn."""
    return at_max_tokens(episode) or at_context_limit(episode, max_turns)


def at_max_tokens(episode: EpisodeRecord) -> bool:
    """Whether a turn was cut at maxTokens, or the episode at episodeTokenLimit."""
    return episode.token_limited or any(turn.finish_reason == "length" for turn in episode.turns)


def at_context_limit(episode: EpisodeRecord, max_turns: int | None) -> bool:
    """Whether the episode was truncated because the context had no room for another turn."""
    other = at_turn_limit(episode, max_turns) or at_max_tokens(episode) or episode.timed_out
    return episode.outcome is Outcome.TRUNCATED and not other


def tool_calls(episode: EpisodeRecord) -> ToolCalls:
    """Tool calls of the episode's conversation; examples in the environment's first messages do not count."""
    made = [call for message in sampled_messages(episode) for call in _calls(message)]
    identities = Counter(call.get("id") for call in made)
    failures = Counter(
        message.get("tool_call_id") for message in played_messages(episode) if _is_failure(message)
    )
    return ToolCalls(
        by_tool=dict(Counter(str(call.get("function", {}).get("name", "")) for call in made)),
        failed=(identities & failures).total(),
        malformed=sum(turn.malformed_tool_calls for turn in episode.turns),
    )


def sampled_messages(episode: EpisodeRecord) -> list[dict[str, Any]]:
    """The assistant messages that the model sampled: the last ones, one for each delivered turn."""
    answers = [message for message in episode.messages if message.get("role") == "assistant"]
    taken = sum(turn.delivered for turn in episode.turns)
    return answers[max(0, len(answers) - taken) :]


def played_messages(episode: EpisodeRecord) -> list[dict[str, Any]]:
    """The conversation from the first sampled message on. The messages before are the environment's."""
    first = next(iter(sampled_messages(episode)), None)
    begin = next((at for at, message in enumerate(episode.messages) if message is first), None)
    return [] if begin is None else episode.messages[begin:]


def _is_failure(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" and text_of(message).startswith(TOOL_ERROR)


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def text_of(message: Mapping[str, Any]) -> str:
    """A message's words; its content is a string, or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
