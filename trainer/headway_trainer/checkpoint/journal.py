"""Which steps were taken, and which of them is durable: the order in which a checkpoint comes to count.

    1. the weights of step n
    2. steps/<n>.json                      the step is taken: its groups, in this incarnation
    3. POST /v1/steps                      servers may sample with it
    4. the files of its checkpoint         where it makes one; in the background, others may lie half-written
    5. checkpoints/<n>/report.json         the checkpoint is complete
    6. latest.json = {"step": n}           a restart resumes here

A crash between 2 and 6 leaves steps that were taken and are not durable. The next start resumes at the
durable one and takes them anew, from the same groups, in a new incarnation, so that neither their weights nor
their bill can be mistaken for those of before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.records import PolicyVersion, StepReport
from headway_api.store import NotFound, Store


class Journal:
    """The step reports of a job in its artifact store; only rank 0 has one."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    @property
    def step(self) -> int | None:
        """The step to resume from; None for a new job."""
        try:
            return int(json.loads(self._store.get(self._layout.latest))["step"])
        except NotFound:
            return None

    def latest(self) -> StepReport | None:
        """Report of the step to resume from, in the incarnation that resumes; None for a new job."""
        if (step := self.step) is None:
            return None
        report = StepReport.model_validate_json(self._store.get(self._layout.step_report(step)))
        return _in_incarnation(report, incarnation(report, self._reports()))

    def take(self, report: StepReport) -> None:
        """Put on record that `report`'s step was taken; idempotent."""
        self._store.put(self._layout.step_history(report.step), _body(report))

    def seal(self, report: StepReport) -> None:
        """Make `report`'s step, whose checkpoint's files are all there, the one to resume from; idempotent.

        Raises:
            JobError: `Superseded`: another process has resumed this learner meanwhile. The step it resumed at
                was durable when `report` was made, and stands there in a newer incarnation.
        """
        resumed = self._history(report.durable)
        if resumed is not None and resumed.version.incarnation > report.version.incarnation:
            raise JobError(
                "Superseded",
                f"another process goes on from step {resumed.step} as version {resumed.version}, so this one "
                f"ends, at version {report.version}",
                permanent=False,
            )
        durable = report.model_copy(update={"durable": report.step})
        self._store.put(self._layout.step_report(report.step), _body(durable))
        self._store.put(self._layout.latest, json.dumps({"step": report.step}).encode())

    def confirm(self, report: StepReport) -> None:
        """Write again what a crash may have kept from being written of the step that is resumed; idempotent.

        The pointer stays as it is: it moves forward with a checkpoint, and back by a person only.
        """
        self._store.put(self._layout.step_report(report.step), _body(report))
        self.take(report)

    def _history(self, step: int) -> StepReport | None:
        try:
            return StepReport.model_validate_json(self._store.get(self._layout.step_history(step)))
        except NotFound:
            return None

    def _reports(self) -> list[StepReport]:
        uris = self._store.list(self._layout.step_histories)
        return [StepReport.model_validate_json(self._store.get(uri)) for uri in uris]


def incarnation(resumed: StepReport, history: Sequence[StepReport]) -> int:
    """The incarnation that goes on from `resumed`, given what is on record of any step.

    It is `resumed`'s own, unless a later step was already reported in it, or any step in a newer one: the
    steps ahead will be taken anew and may differ, so they need new names.
    """
    current = resumed.version.incarnation
    newest = max((report.version.incarnation for report in history), default=current)
    beyond = any(r.step > resumed.step and r.version.incarnation >= current for r in history)
    return newest + 1 if newest > current or beyond else current


def _in_incarnation(report: StepReport, number: int) -> StepReport:
    version = PolicyVersion(incarnation=number, step=report.step)
    weights = report.weights.model_copy(update={"version": version})
    return report.model_copy(update={"version": version, "weights": weights})


def _body(report: StepReport) -> bytes:
    return report.model_dump_json().encode()
