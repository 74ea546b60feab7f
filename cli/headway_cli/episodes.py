"""Selects and orders a run's episodes, and formats them as text or JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.measures.episodes import gap
from headway_api.records import EpisodeRecord, GroupRecord, Outcome
from headway_cli.terminal_text import without_controls

FAILED: Final = (Outcome.AGENT_ERROR, Outcome.INFRA_ERROR)
"""Outcomes of episodes that an error ended."""


@dataclass(frozen=True)
class Task:
    """A task of the dataset, or a suite."""

    name: str
    rows: frozenset[int] = frozenset()
    """Rows of the dataset that have this task."""

    def has(self, group: GroupRecord) -> bool:
        """Whether a group belongs to this task: its row is one of `rows`, or its suite has this name."""
        return group.row in self.rows if group.suite is None else group.suite == self.name


@dataclass(frozen=True)
class Shown:
    """An episode and its group."""

    group: GroupRecord
    episode: EpisodeRecord

    @property
    def gap(self) -> float:
        """Absolute difference of reward and external score; 0 if one of them is missing."""
        return gap(self.episode)


@dataclass(frozen=True)
class Filter:
    """Selects episodes. A field that is None selects all."""

    step: int | None = None
    outcome: Outcome | None = None
    row: int | None = None
    disagree: bool = False
    """Only episodes whose reward and external score differ, the largest difference first."""
    failed: bool = False
    """Only episodes whose outcome is one of `FAILED`."""
    task: Task | None = None

    @property
    def lost(self) -> bool:
        """Whether groups may match in which every episode ended with InfraError, so that none was scored."""
        return self.failed or self.outcome is Outcome.INFRA_ERROR

    def of(self, groups: Iterable[GroupRecord]) -> list[Shown]:
        """The matching episodes, in the order of their groups; with `disagree`, by falling difference."""
        found = [Shown(group, episode) for group in groups for episode in group.episodes]
        found = [each for each in found if self._takes(each)]
        return sorted(found, key=lambda each: -each.gap) if self.disagree else found

    def _takes(self, each: Shown) -> bool:
        return (
            self.step in (None, each.group.step)
            and self.row in (None, each.group.row)
            and self.outcome in (None, each.episode.outcome)
            and not (self.disagree and each.gap == 0)
            and not (self.failed and each.episode.outcome not in FAILED)
            and (self.task is None or self.task.has(each.group))
        )


def text(each: Shown) -> str:
    """An episode as text for a person."""
    episode, group = each.episode, each.group
    head = f"{episode.episode_id}  step {group.step}  row {group.row}  {episode.outcome}"
    return without_controls("\n".join([head, *_messages(episode), f"  {_end(episode)}"]))


def _messages(episode: EpisodeRecord) -> Iterator[str]:
    for message in episode.messages:
        parts = [_plain(message.get("content"))]
        for call in message.get("tool_calls") or []:
            parts.append(f"-> {call['function']['name']}({call['function']['arguments']})")
        content = " ".join(part for part in parts if part)
        yield f"  {message['role']:>9}: {' '.join(content.split())}"


def _plain(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return json.dumps(content, ensure_ascii=False)


def _end(episode: EpisodeRecord) -> str:
    if episode.outcome is Outcome.INFRA_ERROR:
        return f"lost: {episode.error or 'no reason was given'}"
    score = "none" if episode.score is None else f"{episode.score:g}"
    parts = [f"reward {episode.reward:g}", f"external score {score}"]
    parts += [f"{name} {value:g}" for name, value in sorted(episode.metrics.items())]
    return ", ".join(parts) + (f"; {episode.error}" if episode.error else "")


def row(each: Shown) -> dict[str, Any]:
    """An episode as a JSON object: its ids, outcome, scores and messages, without its tokens."""
    episode, group = each.episode, each.group
    return {
        "episode": episode.episode_id,
        "group": group.group_id,
        "purpose": group.purpose.value,
        "step": group.step,
        "row": group.row,
        "outcome": episode.outcome.value,
        "reward": episode.reward,
        "score": episode.score,
        "metrics": episode.metrics,
        "error": episode.error,
        "turns": len(episode.turns),
        "seconds": episode.finished_at - episode.started_at,
        "messages": episode.messages,
    }
