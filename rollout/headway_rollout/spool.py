"""Finished groups in the artifact store: durable before the learner may see them, until it has acknowledged.

Nothing is deleted: the spool is also the record of every trajectory. What was acknowledged is read from the
learner's own step reports, as far as `latest.json` says that they are durable.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field

from headway_api.artifacts import Layout
from headway_api.records import GroupRecord, Purpose, StepReport
from headway_api.store import Denied, NotFound, Store, bucket_unavailable


def encode(group: GroupRecord) -> bytes:
    """As it is stored; equal groups are equal bytes."""
    return gzip.compress(group.model_dump_json().encode(), compresslevel=5, mtime=0)


def decode(data: bytes) -> GroupRecord:
    """Inverse of `encode`."""
    return GroupRecord.model_validate_json(gzip.decompress(data))


@dataclass(frozen=True)
class Replay:
    """What a coordinator finds when it starts."""

    reports: list[StepReport] = field(default_factory=list)
    """Durable step reports, oldest first."""
    waiting: list[GroupRecord] = field(default_factory=list)
    """Spooled training groups that no durable step acknowledges, in data order."""
    undone: list[StepReport] = field(default_factory=list)
    """Reports of steps beyond the newest durable one, oldest first: a rollback undid them."""
    last: list[GroupRecord] = field(default_factory=list)
    """Groups of the newest durable step."""
    validations: dict[int, list[GroupRecord]] = field(default_factory=dict)
    """Validation groups by step; of one id there may be several, of which at most one is answered."""

    @property
    def acknowledged(self) -> set[str]:
        """Ids of the groups the learner has taken for good."""
        return {group for report in self.reports for group in report.groups}


class Spool:
    """The spool of one job. Blocking calls: run them in a thread."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    def put(self, group: GroupRecord) -> GroupRecord:
        """Make a group durable; returns what stands, which is an earlier writing where there is one."""
        uri = self._uri(group)
        return group if self._store.put_new(uri, encode(group)) else decode(self._store.get(uri))

    def replay(self) -> Replay:
        """Read everything back."""
        latest = self.latest()
        validations: dict[int, list[GroupRecord]] = {}
        for folder in (f"{self._layout.root}/trajectories/validation", self._layout.failed_groups):
            for group in map(self._group, self._store.list(folder)):
                validations.setdefault(group.step, []).append(group)
        reports = [self._report(step) for step in range(latest + 1)] if latest is not None else []
        undone = self._after(latest) if latest is not None else []
        taken = {self._layout.train_group(group) for report in reports for group in report.groups}
        spooled = self._store.list(self._layout.train_groups)
        return Replay(
            reports=reports,
            waiting=[self._group(uri) for uri in spooled if uri not in taken],
            undone=undone,
            last=[
                self._group(self._layout.train_group(group))
                for group in (reports[-1].groups if reports else [])
            ],
            validations=validations,
        )

    def keep(self, report: StepReport) -> None:
        """Keep a step's report for as long as the job's folder, whoever has written it first."""
        self._store.put_new(self._layout.step_history(report.step), report.model_dump_json().encode())

    def latest(self) -> int | None:
        """The newest durable step; None before the learner has written any."""
        try:
            return int(json.loads(self._store.get(self._layout.latest))["step"])
        except NotFound:
            return None

    def incarnation(self) -> int:
        """Number of this coordinator process: one more than any before it, whichever of them still live.

        Raises:
            JobError: `BucketUnavailable`: this is the first that a coordinator writes.
        """
        try:
            number = len(self._store.list(self._layout.incarnations))
            while not self._store.put_new(self._layout.incarnation(number), b""):
                number += 1
        except Denied as error:
            raise bucket_unavailable(self._layout.root, error) from error
        return number

    def _uri(self, group: GroupRecord) -> str:
        if group.purpose is Purpose.TRAIN:
            return self._layout.train_group(group.group_id)
        if group.unanswered:
            return self._layout.failed_group(group.key)
        return self._layout.validation_group(group.step, group.group_id)

    def _group(self, uri: str) -> GroupRecord:
        return decode(self._store.get(uri))

    def _after(self, step: int) -> list[StepReport]:
        """Reports of steps beyond `step`: there are some only where the pointer was moved back."""
        last = self._layout.step_history(step)
        uris = [uri for uri in self._store.list(self._layout.step_histories) if uri > last]
        return [StepReport.model_validate_json(self._store.get(uri)) for uri in uris]

    def _report(self, step: int) -> StepReport:
        try:
            data = self._store.get(self._layout.step_history(step))
        except NotFound:
            data = self._store.get(self._layout.step_report(step))
        return StepReport.model_validate_json(data)
