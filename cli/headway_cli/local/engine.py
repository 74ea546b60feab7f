"""The local engine: makes and carries out the operator's plan for one job until the job has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headway_api import names
from headway_api.conditions import ConditionType, is_finished, is_true
from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_cli.local.machine import Machine
from headway_operator.config import Images, OperatorConfig
from headway_operator.plan import planner
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.reading import parse_status

LOOK_SECONDS: Final = 0.5
"""Seconds between two plans."""
HERE: Final = "this-machine"
"""Name that the plan uses as the image of every container: no image is needed here."""


def platform(accelerators: bool) -> OperatorConfig:
    """The operator's configuration for this machine. `accelerators`: whether it has a GPU."""
    images = Images.model_validate(dict.fromkeys(Images.model_fields, HERE))
    return OperatorConfig(images=images, accelerator="nvidia.com/gpu" if accelerators else "")


def has_accelerator() -> bool:
    """Whether this machine has an NVIDIA GPU that its driver knows."""
    return Path("/dev/nvidiactl").exists()


@dataclass(frozen=True)
class Engine:
    """Runs the job of a folder."""

    folder: JobFolder
    modules: Path
    """Folder of the environment's modules."""
    platform: OperatorConfig
    coordinator: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the coordinator."""

    async def run(self, show: Callable[[Json], None]) -> Json:
        """Run until the job has ended or is held, and none of its processes runs.

        Args:
            show: called with the job before each plan, and at the end.

        Returns:
            The job with its last status.
        """
        self._count_rest()
        raw = self.folder.whole()
        async with Machine(self.folder.folder, self.modules, raw, self.coordinator) as machine:
            while True:
                raw = self.folder.whole()
                show(raw)  # before the plan, because the callback may end the job
                made = planner.make(raw, self.platform, machine.observed(self._sources(raw)))
                await machine.carry_out(made.wanted, made.to_delete)
                if made.status is not None:
                    self.folder.write_status(names.FIELD_MANAGER_OPERATOR, made.status.as_object())
                raw = self.folder.whole()
                held = is_held(raw) and machine.is_still() and made.requeue_after != 0
                if held or (is_over(raw) and machine.is_empty()):
                    show(raw)
                    return raw
                again = LOOK_SECONDS if made.requeue_after is None else made.requeue_after
                await asyncio.sleep(min(LOOK_SECONDS, max(0.0, again)))

    def _count_rest(self) -> None:
        """Count the time since the last run as suspended, so that no deadline includes it."""
        status, since = self.folder.last_status(names.FIELD_MANAGER_OPERATOR)
        begun = "startTime" in status and "completionTime" not in status
        held = is_held(self.folder.whole())
        if since is not None and begun and not held:  # the plan itself counts the time of a suspension
            rest = int(max(0.0, time.time() - since))
            status["suspendedSeconds"] = int(status.get("suspendedSeconds", 0)) + rest
            self.folder.write_status(names.FIELD_MANAGER_OPERATOR, status)

    def _sources(self, raw: Json) -> dict[str, Json]:
        """The jobs whose weights this job uses, by name, if they have folders beside its own."""
        beside = {name: JobFolder(self.folder.folder.parent / name) for name in planner.sources(raw)}
        return {name: folder.whole() for name, folder in beside.items() if folder.exists()}


def is_held(raw: Json) -> bool:
    """Whether a job is held until a person changes something: suspended, paused, out of budget or refused."""
    found = parse_status(job_kind_of(raw).model, raw).conditions
    return is_true(found, ConditionType.SUSPENDED) or is_true(found, ConditionType.STALLED)


def is_over(raw: Json) -> bool:
    """Whether a job is Complete or Failed."""
    return is_finished(parse_status(job_kind_of(raw).model, raw).conditions)
