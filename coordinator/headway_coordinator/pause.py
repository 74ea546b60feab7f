"""Pauses a job's training at a signal, until a person resumes it.

The coordinator decides, and writes `status.pause`. From then on the learner gets no batch and no group
begins; running groups may end. The operator stops the pods. While the job has no pods, the operator writes
into `status.resumedPause` which pause a person has ended. So a coordinator reads this field only when it
starts. A coordinator that has paused a job keeps the job paused until the coordinator ends.
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
    """The raised signals that pause the job, the most severe first."""
    if collapse.policy != "Pause":
        return []
    return [verdict for verdict in raised if verdict.signal.name in collapse.acted_on]


def unseen(found: Sequence[Verdict], last: st.Pause | None) -> list[Verdict]:
    """The signals that were raised, or raised again, since a person resumed the job after its last pause.

    A signal that was raised then, and still is, has been seen. Its step alone does not show that. A
    validation may end, and raise a signal, long after the step that it measures.
    """
    if last is None:
        return [*found]
    return [each for each in found if each.signal.name not in last.signals or each.standing.since > last.step]


def pause_of(
    job: Identity, step: int, new: Sequence[Verdict], found: Sequence[Verdict], now: datetime
) -> st.Pause:
    """The pause at `step`, because of the `new` signals among those `found`."""
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
    """The pauses of one job. `previous` is its status at the start of this process."""

    def __init__(self, job: Identity, collapse: CollapseSpec, previous: st.RLTrainingJobStatus) -> None:
        self._job = job
        self._collapse = collapse
        self.last = previous.pause
        """The last pause, over or not."""
        self._seen = previous.pause
        """The pause whose signals a person has seen. None without a pause, or if the job went back before
        it."""
        self.is_paused = previous.pause is not None and previous.pause.time != previous.resumed_pause
        """Whether the job is paused. A predecessor may have paused it while the operator was not running."""

    def begin(self, step: int) -> None:
        """Note that the job goes on from `step`.

        If `step` is before the last pause, a person chose an older checkpoint, or steps were lost. Those
        steps are taken again, and a signal that they raise is new.
        """
        if self.last is not None and step < self.last.step:
            self._seen = None

    def look(self, step: int, raised: Sequence[Verdict], *, done: bool) -> None:
        """Pause the job if signals require it. `done`: all steps are taken, so there is nothing to pause."""
        found = acting(self._collapse, raised)
        if self.is_paused:
            self._add(found)
            return
        new = [] if done else unseen(found, self._seen)
        if not new:
            return
        self.last = self._seen = pause_of(self._job, step, new, found, datetime.now(UTC))
        self.is_paused = True
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
        """Add signals that were raised during the pause: the person who resumes the job has seen them."""
        assert self.last is not None
        also = [name for name in _named(found) if name not in self.last.signals]
        if also:
            self.last = self.last.model_copy(update={"signals": [*self.last.signals, *also]})
            self._seen = self.last
