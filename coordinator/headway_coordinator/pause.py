"""Stops a job's training at a sign of collapse, until a person has it go on.

The coordinator decides, and says so in `status.pause`. From then on the learner gets no batch and no group
begins; what runs may end. The operator stops the pods. It also says, in `status.resumedPause`, which pause a
person has ended, and it does so while the job has no pods: a coordinator learns of it when it starts, and one
that has paused a job stays so for as long as it lives.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from headway_analysis.signals.watch import Verdict
from headway_api import logs, names
from headway_api import status as st
from headway_api.config import Identity
from headway_api.spec.trust import CollapseSpec
from headway_coordinator.signals import TEXT_LENGTH, message

_log = logging.getLogger(__name__)


def acting(collapse: CollapseSpec, raised: Sequence[Verdict]) -> list[Verdict]:
    """Those of the signals that are raised which the job stops for, the gravest first."""
    if collapse.policy != "Pause":
        return []
    return [verdict for verdict in raised if verdict.signal.name in collapse.acted_upon]


def unseen(found: Sequence[Verdict], last: st.Pause | None) -> list[Verdict]:
    """Those of the signals that whoever resumed the last pause has not seen: raised since, or raised anew.

    A signal that was raised then and still is has been seen. By its step alone it could not be told: a
    validation may end, and raise its signal, long after the step that it is of.
    """
    if last is None:
        return [*found]
    return [each for each in found if each.signal.name not in last.signals or each.standing.since > last.step]


def pause_of(
    job: Identity, step: int, new: Sequence[Verdict], found: Sequence[Verdict], now: datetime
) -> st.Pause:
    """The pause at `step` for the `new` ones of the signals `found`."""
    time = now.astimezone(UTC).replace(microsecond=0)
    return st.Pause(
        signal=new[0].signal.name.value,
        signals=_named(found),
        step=step,
        time=time,
        message=message(new[0])[:TEXT_LENGTH],
        resume=f"kubectl annotate rltj {job.name} -n {job.namespace} "
        f"{names.ANNOTATION_RESUME}={time:%Y-%m-%dT%H:%M:%SZ} --overwrite",
    )


def _named(found: Sequence[Verdict]) -> list[str]:
    return [verdict.signal.name.value for verdict in found]


class Pauses:
    """Those of one job. `told` is what its status said when this process started."""

    def __init__(self, job: Identity, collapse: CollapseSpec, told: st.RLTrainingJobStatus) -> None:
        self._job = job
        self._collapse = collapse
        self.last = told.pause
        """The last one, over or not."""
        self._seen = told.pause
        """What a signal is to be held against; None also where the job has gone back to before it."""
        self.holds = told.pause is not None and told.pause.time != told.resumed_pause
        """Whether the job is paused. A predecessor may have paused it, and the operator be away."""

    def begin(self, step: int) -> None:
        """The job goes on from `step`. Where that is before the last pause, a person has gone back to an
        older checkpoint, or steps were lost: they are taken anew, and a signal that they raise is new."""
        if self.last is not None and step < self.last.step:
            self._seen = None

    def look(self, step: int, raised: Sequence[Verdict], *, done: bool) -> None:
        """Pause the job if it has to be. `done`: all of its steps are taken, and there is nothing to stop."""
        found = acting(self._collapse, raised)
        if self.holds:
            self._add(found)
            return
        new = [] if done else unseen(found, self._seen)
        if not new:
            return
        self.last = self._seen = pause_of(self._job, step, new, found, datetime.now(UTC))
        self.holds = True
        logs.event(
            _log,
            "paused",
            level=logging.WARNING,
            step=step,
            signal=self.last.signal,
            why=self.last.message,
            resume=self.last.resume,
        )

    def _add(self, found: Sequence[Verdict]) -> None:
        """What is raised while the job is paused will have been seen by whoever resumes it."""
        assert self.last is not None
        also = [name for name in _named(found) if name not in self.last.signals]
        if also:
            self.last = self.last.model_copy(update={"signals": [*self.last.signals, *also]})
            self._seen = self.last
