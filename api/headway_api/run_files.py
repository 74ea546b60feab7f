"""Reads what a run has left in the artifact store, as typed records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from headway_api.artifacts import GROUPS, NUMBERED, Layout, written
from headway_api.bounds import MIB, OutOfBoundsError, json_within
from headway_api.decisions import Decision
from headway_api.records import BatchMetrics, GroupRecord, Purpose, StepReport, ValidationRecord
from headway_api.store import ObjectNotFoundError, Store, unreadable
from headway_api.stored import group, parsed, read_each

DOCUMENT: Final = 64 * MIB
"""Maximum bytes of a document that is read as plain JSON, such as a report of many candidates."""


class RunFiles:
    """The files of one job, of either kind. Blocking.

    Every method raises what `Store.get` and `Store.list` raise. It raises JobError `RecordUnreadable` if an
    object is not what the job writes there.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self.layout = layout

    def steps(self) -> list[StepReport]:
        """The reports of steps that were not undone, by step."""
        uris = self._written(self.layout.step_histories)
        reports, _ = valid_and_undone([*read_each(self._store, uris, partial(parsed, StepReport))])
        return reports

    def batch_metrics(self) -> dict[int, BatchMetrics]:
        """Step -> metrics of its batch, for the steps whose metrics are stored."""
        uris = self._written(self.layout.all_batch_metrics)
        return {each.step: each for each in read_each(self._store, uris, partial(parsed, BatchMetrics))}

    def validations(self) -> list[ValidationRecord]:
        """Finished validations, by step."""
        uris = self._written(self.layout.validations)
        found = read_each(self._store, uris, partial(parsed, ValidationRecord))
        return sorted(found, key=lambda each: each.step)

    def decisions(self) -> list[Decision]:
        """Decisions about the running job, by number."""
        found = read_each(self._store, self._written(self.layout.remedies), partial(parsed, Decision))
        return sorted(found, key=lambda each: each.number)

    def document(self, uri: str) -> dict[str, Any] | None:
        """A JSON object that was written for readers, such as `layout.report`; None if there is none."""
        try:
            found = json_within(self._store.get(uri), DOCUMENT)
        except ObjectNotFoundError:
            return None
        except OutOfBoundsError as error:
            raise unreadable(uri, str(error)) from error
        if not isinstance(found, dict):
            raise unreadable(uri, "it is not a JSON object")
        return found

    def groups(self, uris: Sequence[str]) -> Iterator[GroupRecord]:
        """The groups at some addresses, in their order."""
        return read_each(self._store, uris, group)

    def addresses(self, purpose: Purpose, candidate: str | None = None) -> list[str]:
        """Addresses of the groups with a purpose, sorted. With `candidate`, only the groups of that
        candidate."""
        folder = f"{self.layout.root}/trajectories/{purpose.value}"
        folder = folder if candidate is None else f"{folder}/{candidate}"
        return sorted(written(self._store.list(folder), folder, GROUPS))

    def unanswered(self) -> list[str]:
        """Addresses of the groups without any scored episode, of all purposes except training, sorted."""
        folder = self.layout.failed_groups
        return sorted(written(self._store.list(folder), folder, GROUPS))

    def _written(self, folder: str) -> list[str]:
        return sorted(written(self._store.list(folder), folder, NUMBERED))


def valid_and_undone(reports: Sequence[StepReport]) -> tuple[list[StepReport], list[StepReport]]:
    """Reports of valid steps, and reports of undone steps, each sorted by step.

    The report with the newest version shows at which step the learner is. Later steps were taken before the
    learner resumed from an older checkpoint, so they are undone.
    """
    newest = max((report.version for report in reports), default=None)
    ordered = sorted(reports, key=lambda report: report.step)
    at = -1 if newest is None else newest.step
    return [r for r in ordered if r.step <= at], [r for r in ordered if r.step > at]
