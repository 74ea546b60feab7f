"""Finds the parts of a job that fail again and again: its environment's methods and tools, and its agent.

Pure.

Two faults are alike if the same method or tool failed at the same line, whatever values their messages
contain. A cause is standing from when it has ended `RAISED` of the last `WINDOW` episodes, until it has ended
none of the last `CLEAR_AFTER`. A job gives up if no episode was scored, and its standing causes have ended at
least half of all episodes. They must also have ended `FATAL_CAUSE_EPISODES` episodes or more.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headway_api.exits import JobError
from headway_coordinator.bounds import FATAL_CAUSE_EPISODES
from headway_coordinator.faults import Cause

WINDOW: Final = 64
RAISED: Final = 3
CLEAR_AFTER: Final = 32
SHOWN: Final = 3
"""The most causes that a message names."""
ROUND: Final = (1, 2, 5)
AGENT_FAILED: Final = "AgentFailed"
AGENT_HANGS: Final = "AgentHangs"
HANGS: Final = "EnvironmentHangs"
NEVER_FATAL_FIELDS: Final = ("spec.agent.http", "spec.suites[", "spec.environment.sandbox.resources")
"""Causes with these fields end no job. A person can repair an agent's service while the job runs. A suite
fails without the others, and sandboxes may be lost with their nodes."""
PLACE: Final = re.compile(r"\S+:\d+ in \S+")
WHERE: Final = re.compile(r"(?P<where>.+?) (raised|returned|has not returned) ")
DIGITS: Final = re.compile(r"\d+")
ALIKE_CHARACTERS: Final = 200


@dataclass(frozen=True)
class RecurringCause:
    """A cause that ends episodes."""

    cause: Cause
    """The cause, as its latest occurrence was reported."""
    count: int
    """Episodes that the cause has ended since it appeared."""

    @property
    def words(self) -> str:
        """A sentence for people.

        The count is rounded, because the condition must not change at each episode.
        """
        field = f"{self.cause.field}: " if self.cause.field else ""
        return f"{field}{self.cause.message}. It has ended {rounded(self.count)} episodes or more"


def alike(cause: Cause) -> str:
    """A key for a cause. Causes that one and the same change repairs have the same key."""
    if (found := WHERE.match(cause.message)) is None:
        return f"{cause.reason} {DIGITS.sub('#', cause.message)[:ALIKE_CHARACTERS]}"
    places = PLACE.findall(cause.message)
    at = places[-1] if places and cause.reason != HANGS else ""
    return f"{cause.reason} {found['where']} {at}"


def rounded(count: int) -> int:
    """1, 2, 5, 10, 20, 50 and so on: the largest of these that is not above `count`."""
    size = int(10 ** (len(str(count)) - 1))
    return max(step * size for step in ROUND if step * size <= count)


class Recurring:
    """The causes that ended one process's episodes."""

    def __init__(self) -> None:
        self._recent: deque[str | None] = deque(maxlen=WINDOW)
        self._counts: Counter[str] = Counter()
        self._last: dict[str, Cause] = {}
        self._standing: set[str] = set()
        self._causes: dict[str, Cause] = {}
        self._scored = False
        self._ended = 0
        self._at_once = 1

    def scored_before(self) -> None:
        """Note that an earlier process had scored episodes: no cause ends every episode of the job."""
        self._scored = True

    def note(self, episode: str, cause: Cause) -> None:
        """Note what part of the job failed in an episode, by its id. A call of `ended` follows."""
        self._causes[episode] = cause

    def cause_of(self, episode: str) -> Cause | None:
        """The cause that was noted for an episode that has not been counted yet."""
        return self._causes.get(episode)

    def ended(self, episode: str, *, scored: bool, at_once: int = 1) -> bool:
        """Note that an episode ended. Returns whether the standing causes changed.

        Args:
            episode: its id.
            scored: whether the episode has a reward.
            at_once: how many episodes ran at the same time.
        """
        before, cause = self.standing, self._causes.pop(episode, None)
        self._scored |= scored
        self._ended += 1
        self._at_once = max(self._at_once, at_once)
        key = None if cause is None else alike(cause)
        self._recent.append(key)
        if key is not None and cause is not None:
            self._counts[key] += 1
            self._last[key] = cause
            if self._recent.count(key) >= RAISED:
                self._standing.add(key)
        lately = {*[*self._recent][-CLEAR_AFTER:]}
        self._standing &= lately
        for gone in self._last.keys() - {*self._recent}:
            del self._last[gone], self._counts[gone]
        return [each.words for each in before] != [each.words for each in self.standing]

    @property
    def standing(self) -> list[RecurringCause]:
        """The standing causes. The ones that ended the most episodes come first."""
        known = (RecurringCause(self._last[key], self._counts[key]) for key in self._standing)
        return sorted(known, key=lambda each: (-each.count, each.cause.message))

    @property
    def fatal_cause(self) -> RecurringCause | None:
        """The cause for which the job gives up; None if it goes on.

        The cause has ended so many episodes that the next one would probably fail too.
        """
        return self.worst_cause(max(FATAL_CAUSE_EPISODES, 2 * self._at_once))

    def worst_cause(self, least: int = RAISED) -> RecurringCause | None:
        """The worst cause, if causes that may end a job have ended enough episodes.

        They must have ended at least `least` episodes, and half of all. No episode may have been scored yet.
        """
        known = [
            each for each in self.standing if not (each.cause.field or "").startswith(NEVER_FATAL_FIELDS)
        ]
        ended = sum(each.count for each in known)
        enough = ended >= least and 2 * ended >= self._ended
        return known[0] if enough and not self._scored else None


def causes_message(standing: Iterable[RecurringCause]) -> str:
    """What a condition says about the causes."""
    return "; ".join(each.words for each in [*standing][:SHOWN])


def given_up(found: RecurringCause, *, begun: bool) -> JobError:
    """Why the job ends: every episode fails. If the job has `begun`, a restart may help."""
    text = f"{found.cause.message}. It ended {found.count} episodes, and no episode was scored"
    return JobError(found.cause.reason, text, field=found.cause.field, permanent=not begun)
