"""Finished groups in the artifact store: durable before the learner may see them, and kept after that.

Nothing is deleted: the spool is also the record of every trajectory. The learner's own step reports show
which groups were taken. A learner that resumed at an older step has written that step's report again, in a
newer incarnation. The steps beyond it are undone. A finished validation is read back from its summary. The
summary is valid as long as the store has exactly the groups that it was made of.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final

from headway_api.artifacts import GROUPS, NUMBERED, Layout, by_number, pointed, written
from headway_api.bounds import OutOfBoundsError
from headway_api.config import Identity
from headway_api.records import (
    Abandoned,
    BatchMetrics,
    GroupRecord,
    PolicyVersion,
    Purpose,
    StepReport,
    WeightsManifest,
)
from headway_api.run_files import valid_and_undone
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError, bucket_unavailable, get_each
from headway_api.stored import group as stored_group
from headway_api.stored import parsed, read_each
from headway_api.withheld import public
from headway_coordinator.bounds import superseded
from headway_coordinator.evaluation.summary import Summary
from headway_coordinator.remedies.journal import Journal, Known

MAX_DIGEST: Final = 64
"""Characters of a SHA-256 in hex."""


def encode(group: GroupRecord) -> bytes:
    """The stored form. Equal groups have equal bytes."""
    return gzip.compress(group.model_dump_json().encode(), compresslevel=5, mtime=0)


def decode(data: bytes) -> GroupRecord:
    """A group from its stored form.

    Raises:
        OutOfBoundsError: the data is not a group, or is too large.
    """
    return stored_group(data)


@dataclass(frozen=True)
class Replay:
    """What a coordinator finds in the store when it starts."""

    reports: list[StepReport] = field(default_factory=list)
    """Step reports that are still valid, oldest first."""
    waiting: list[GroupRecord] = field(default_factory=list)
    """Spooled training groups that no step has taken, in data order."""
    undone: list[StepReport] = field(default_factory=list)
    """Reports of steps beyond the newest valid one, oldest first: a rollback undid them."""
    last: list[GroupRecord] = field(default_factory=list)
    """The groups of the newest step that has any."""
    validations: dict[int, list[GroupRecord]] = field(default_factory=dict)
    """Validation groups by step. A group id may occur several times: at most one of these groups has a scored
    episode. A step with a summary has only groups without a scored episode."""
    summaries: dict[int, Summary] = field(default_factory=dict)
    """Finished validations by step."""
    known: Known = field(default_factory=Known)
    """The recorded decisions about remedies."""

    @property
    def taken(self) -> set[str]:
        """Ids of the groups that the learner has taken."""
        return {group for report in self.reports for group in report.groups}


class Spool:
    """The spool of one job. Blocking calls: run them in a thread."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    @property
    def decided(self) -> Journal:
        """The journal of decisions about remedies."""
        return Journal(self._store, self._layout)

    def put(self, group: GroupRecord) -> GroupRecord:
        """Make a group durable.

        Returns the stored group, which is an earlier one of that name if there is one.
        """
        uri = self._uri(group)
        return group if self._store.put_new(uri, encode(group)) else next(self._groups([uri]))

    def put_unless_superseded(self, group: GroupRecord, start_number: int) -> GroupRecord:
        """Make a group durable with `put`, but only if this coordinator is the newest.

        Raises:
            JobError: `Superseded`: there is a coordinator newer than number `start_number`.
        """
        self.refuse_superseded(start_number)
        return self.put(group)

    def give_up(self, group: GroupRecord, why: Abandoned) -> GroupRecord:
        """Mark a stored group as abandoned, keep its content, and return it."""
        group = group.model_copy(update={"abandoned": why})
        self._store.put(self._uri(group), encode(group))
        return group

    def replay(self) -> Replay:
        """Read what a restarted coordinator needs. Groups that a summary covers are not read."""
        reports, undone = valid_and_undone(self._reports())
        listed = self._validation_groups()
        summaries = self._summaries(listed, reports[-1].step if reports else -1)
        validations: dict[int, list[GroupRecord]] = {}
        read = [uri for step, uris in listed.items() if step not in summaries for uri in uris]
        for group in self._groups([*read, *self._written(self._layout.failed_groups)]):
            if group.purpose is Purpose.VALIDATION:
                validations.setdefault(group.step, []).append(group)
        if reports:
            reports[-1] = reports[-1].model_copy(update={"durable": self._durable(reports[-1])})
        taken = {self._layout.train_group(group) for report in reports for group in report.groups}
        spooled = self._written(self._layout.train_groups)
        newest = next((report.groups for report in reversed(reports) if report.groups), [])
        return Replay(
            reports=reports,
            waiting=[*self._groups([uri for uri in spooled if uri not in taken])],
            undone=undone,
            last=[*self._groups([*map(self._layout.train_group, newest)])],
            validations=validations,
            summaries=summaries,
            known=self.decided.read(),
        )

    def baseline(self) -> list[GroupRecord]:
        """The preflight's groups of baseline episodes, including those without a scored episode.

        A group id may occur several times. At most one of these groups has a scored episode.
        """
        failed = self._groups(self._written(self._layout.failed_groups))
        answered = self._groups(self._written(self._layout.preflight_groups))
        return [*answered, *(group for group in failed if group.purpose is Purpose.PREFLIGHT)]

    def evaluated(self, candidate: str) -> list[GroupRecord]:
        """The answered groups of one candidate."""
        return [*self._groups(self._written(self._layout.evaluation_groups(candidate)))]

    def tested(self) -> list[GroupRecord]:
        """The groups of a training job's test split, including those without a scored episode."""
        answered = self._groups(self._written(self._layout.all_evaluation_groups))
        return [*answered, *self.unanswered()]

    def unanswered(self) -> list[GroupRecord]:
        """The groups of all candidates without a scored episode. A group id may occur several times."""
        failed = self._groups(self._written(self._layout.failed_groups))
        return [group for group in failed if group.purpose is Purpose.EVALUATION]

    def rows_digest(self, digest: str) -> str:
        """The digest of the rows that the job began with. The first start stores its own `digest`."""
        uri = self._layout.rows_digest
        if self._store.put_new(uri, digest.encode()):
            return digest
        return self._store.get(uri)[:MAX_DIGEST].decode(errors="replace")

    def keep_template(self, text: str) -> None:
        """Keep a chat template that this job renders conversations with."""
        self._store.put_new(self._layout.chat_template(sha256(text.encode()).hexdigest()), text.encode())

    def conclude(self, summary: Summary) -> None:
        """Store a validation's summary. Its groups, and their usage, are in the store already.

        If a rollback takes the step again, its validation may differ: the later summary replaces the earlier
        one.
        """
        self._store.put(self._layout.validation(summary.step), summary.model_dump_json().encode())

    def keep(self, report: StepReport) -> None:
        """Store a step's report for as long as the job's folder exists. The first report of a step wins."""
        self._store.put_new(self._layout.step_history(report.step), report.model_dump_json().encode())

    def keep_metrics(self, found: BatchMetrics) -> None:
        """Store the metrics of a step's batch, so that a restart need not read its groups."""
        uri = self._layout.batch_metrics(found.step)
        self._store.put(uri, found.model_dump_json().encode())

    def batch_metrics(self) -> dict[int, BatchMetrics]:
        """The stored metrics of batches, by the step that they made."""
        uris = self._written(self._layout.all_batch_metrics, NUMBERED)
        found = read_each(self._store, uris, partial(parsed, BatchMetrics))
        return {each.step: each for each in found}

    def batch_of(self, report: StepReport) -> list[GroupRecord]:
        """The groups of a step, in the order of its report."""
        return [*self._groups([*map(self._layout.train_group, report.groups)])]

    def taken(self, group: str) -> GroupRecord | None:
        """A group that a step has taken; None if the store no longer has it."""
        try:
            return next(self._groups([self._layout.train_group(group)]))
        except ObjectNotFoundError:
            return None

    def published(self, weights: WeightsManifest) -> bool:
        """Whether the store still has the weights."""
        return bool(self._store.list(weights.uri))

    def latest(self) -> PolicyVersion | None:
        """Version of the newest valid step; None before the learner has taken any."""
        reports, _ = valid_and_undone(self._reports())
        return reports[-1].version if reports else None

    def take_start_number(self) -> int:
        """The number of this coordinator process: one more than any before it, alive or not.

        Raises:
            JobError: `BucketUnavailable`: the store refuses the write, which is a coordinator's first one.
        """
        try:
            number = len(self._store.list(self._layout.coordinator_starts))
            while not self._store.put_new(self._layout.coordinator_start(number), b""):
                number += 1
        except StoreDeniedError as error:
            raise bucket_unavailable(self._layout.root, error) from error
        return number

    def describe(self, job: Identity) -> None:
        """Store the job's identity and its current spec, because later readers of the run have no API server.

        Fields that may hold a secret are left out: more people read a bucket than a custom resource.
        """
        found = public(job.model_dump(mode="json", by_alias=True, exclude_none=True))
        self._store.put(self._layout.job, json.dumps(found).encode())

    def refuse_superseded(self, start_number: int) -> None:
        """Refuse to go on if a successor exists.

        Call it before each write that a successor would mistake for its own.

        A successor takes its number before it claims the sandboxes. So everything that the successor starts
        comes later.

        Raises:
            JobError: `Superseded`: there is a coordinator newer than number `start_number`.
        """
        try:
            self._store.get(self._layout.coordinator_start(start_number + 1))
        except ObjectNotFoundError:
            return
        newer = start_number + 1
        raise superseded(f"start {newer} of the coordinator has begun, and this is {start_number}")

    def _uri(self, group: GroupRecord) -> str:
        if group.purpose is Purpose.TRAIN:
            return self._layout.train_group(group.group_id)
        if group.unanswered:
            return self._layout.failed_group(group.key)
        if group.purpose is Purpose.PREFLIGHT:
            return self._layout.preflight_group(group.group_id)
        if group.candidate is not None:
            return self._layout.evaluation_group(group.candidate, group.group_id)
        return self._layout.validation_group(group.step, group.group_id)

    def _validation_groups(self) -> dict[int, list[str]]:
        """URIs of the answered validation groups, by step."""
        folder = self._layout.all_validation_groups
        return by_number(self._written(folder), folder)

    def _summaries(self, groups: Mapping[int, Sequence[str]], newest: int) -> dict[int, Summary]:
        """The summaries that cover these groups, up to the newest step. A later step is validated again."""
        uris = self._written(self._layout.validations, NUMBERED)
        found = [*filter(None, map(_summary, get_each(self._store, uris)))]
        return {
            summary.step: summary
            for summary in found
            if summary.step <= newest and summary.covers([*map(_group_id, groups.get(summary.step, ()))])
        }

    def _groups(self, uris: Sequence[str]) -> Iterator[GroupRecord]:
        return read_each(self._store, uris, decode)

    def _written(self, folder: str, names: re.Pattern[str] = GROUPS) -> list[str]:
        return written(self._store.list(folder), folder, names)

    def _durable(self, last: StepReport) -> int:
        """The newest durable step. Steps that became durable after the last report count too."""
        try:
            pointed_to = pointed(self._store.get(self._layout.latest))
        except (ObjectNotFoundError, OutOfBoundsError):
            # The pointer is missing or unreadable. The learner resumes by it too, and reports the error.
            return last.durable
        return min(pointed_to, last.step)

    def _reports(self) -> list[StepReport]:
        uris = self._written(self._layout.step_histories, NUMBERED)
        return [*read_each(self._store, uris, partial(parsed, StepReport))]


def _summary(data: bytes) -> Summary | None:
    """A stored summary; None if another version of this program wrote it in another form."""
    try:
        return parsed(Summary, data)
    except OutOfBoundsError:
        return None


def _group_id(uri: str) -> str:
    return uri.rpartition("/")[2].partition(".")[0]
