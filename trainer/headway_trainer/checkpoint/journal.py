"""Which step is durable: the order in which a checkpoint comes to count.

    1. the files of the checkpoint and of the weights      (others may lie half-written: nothing points there)
    2. checkpoints/<n>/report.json                         the checkpoint is complete
    3. latest.json = {"step": n}                           a restart resumes here
    4. steps/<n>.json                                      its groups are acknowledged, for good
    5. POST /v1/steps

`steps/` comes after `latest.json`, so that whoever reads an acknowledgement can rely on the step being
resumable. A crash between 3 and 4 is mended by the next start, which writes 4 again before 5.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from headway_api.artifacts import Layout
from headway_api.records import PolicyVersion, StepReport
from headway_api.store import NotFound, Store


class Journal:
    """The step reports of a job in its artifact store; only rank 0 has one."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    def latest(self) -> StepReport | None:
        """Report of the step to resume from, in the incarnation that resumes; None for a new job."""
        try:
            step = int(json.loads(self._store.get(self._layout.latest))["step"])
        except NotFound:
            return None
        report = StepReport.model_validate_json(self._store.get(self._layout.step_report(step)))
        return _in_incarnation(report, incarnation(report, self._after(step)))

    def commit(self, report: StepReport) -> None:
        """Make `report`'s step the one to resume from, and its groups acknowledged; idempotent."""
        body = report.model_dump_json().encode()
        self._store.put(self._layout.step_report(report.step), body)
        self._store.put(self._layout.latest, json.dumps({"step": report.step}).encode())
        self._store.put(self._layout.step_history(report.step), body)

    def confirm(self, report: StepReport) -> None:
        """Write again what a crash may have kept from being written of the step that is resumed; idempotent.

        The pointer stays as it is: it moves forward with a step that was made, and back by a person only.
        """
        body = report.model_dump_json().encode()
        self._store.put(self._layout.step_report(report.step), body)
        self._store.put(self._layout.step_history(report.step), body)

    def _after(self, step: int) -> list[StepReport]:
        """Reports of steps beyond `step`: there are some only where the pointer was moved back."""
        last = self._layout.step_history(step)
        uris = [uri for uri in self._store.list(self._layout.step_histories) if uri > last]
        return [StepReport.model_validate_json(self._store.get(uri)) for uri in uris]


def incarnation(resumed: StepReport, later: Sequence[StepReport]) -> int:
    """The incarnation that goes on from `resumed`.

    It is `resumed`'s own, unless a later step was already reported in that incarnation or a newer one: the
    learner was rolled back, the steps ahead will be taken anew and differ, so they need new names.
    """
    newest = max((report.version.incarnation for report in later), default=-1)
    current = resumed.version.incarnation
    return newest + 1 if newest >= current else current


def _in_incarnation(report: StepReport, number: int) -> StepReport:
    version = PolicyVersion(incarnation=number, step=report.step)
    weights = report.weights.model_copy(update={"version": version})
    return report.model_copy(update={"version": version, "weights": weights})
