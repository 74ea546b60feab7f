"""Suites: tasks of Inspect AI that candidates are measured on, beside the job's own rows."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import FreeForm, Label
from headway_api.rules import Rule
from headway_api.spec.environment import EnvironmentSpec, Sandbox

RESERVED: Final = ("all", "other")
"""Task names that stand for several tasks. A suite must not have such a name."""
ENTRYPOINT: Final = "headway_sandbox.suites.environment:InspectSample"
"""The class in the sandbox image that runs one sample."""
PROGRAM: Final = ("python3", "-m", "headway_sandbox.suites.program")
"""The program that acts in an episode of a suite."""
BOUNDS: Final = (-1e6, 1e6)
"""Lowest and highest valid score of a sample. The range is wide, because each scorer has its own scale."""
SAMPLE: Final = "sample"
"""Column of a suite's rows: the sample's index in the task's dataset."""
CHECK: Final = "check"
"""Column that marks the row with which the preflight makes a sandbox load the task."""


class Suite(SpecModel):
    """A task of Inspect AI (inspect.aisi.org.uk) that every candidate is also measured on. Each of its
    samples is an episode like any other. In the results the suite's name is the task."""

    name: Annotated[
        Label,
        Field(max_length=40),
        Rule(
            "!(self in ['" + "', '".join(RESERVED) + "'])",
            "the name of a suite must not be all or other, which stand for several tasks; rename it",
            lambda value: value not in RESERVED,
        ),
    ]
    """Name of the task in the results and for the gate. No value of spec.data.taskColumn may equal it."""
    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Container image: Headway's sandbox image with inspect-ai, openai, the task and its dataset added. Pods
    of a suite reach the candidate and nothing else, so nothing can be fetched while a sample runs."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When nodes pull the image. Absent: as in Kubernetes, Always for :latest, otherwise IfNotPresent."""
    task: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+|[A-Za-z0-9_./-]+\.py@[A-Za-z_][A-Za-z0-9_]*)$",
            max_length=256,
        ),
    ]
    """The task as `inspect eval` takes it: PACKAGE/TASK, or PATH.py@TASK of a file in the image."""
    args: FreeForm | None = None
    """Arguments of the task, by name."""
    limit: Annotated[int, Field(ge=1, le=10000)]
    """Number of samples to measure on: the first ones, in the order of the task's dataset."""
    epochs: Annotated[int, Field(ge=1, le=32)] = 1
    """Tries on each sample."""
    sandbox: Sandbox = Sandbox()
    """The pod that each sample runs in. Inspect AI needs seconds of CPU time to start: give the pod one
    CPU."""

    @property
    def environment(self) -> EnvironmentSpec:
        """The environment of the episodes of this suite."""
        return EnvironmentSpec(
            image=self.image,
            image_pull_policy=self.image_pull_policy,
            entrypoint=ENTRYPOINT,
            config={"task": self.task, "args": dict(self.args or {})},
            sandbox=self.sandbox,
        )

    def row(self, sample: int) -> dict[str, Any]:
        """The row with which an episode on a sample begins."""
        return {SAMPLE: sample}

    @property
    def last_row(self) -> dict[str, Any]:
        """The row of the last sample. The preflight uses it to check that the task has `limit` samples."""
        return {SAMPLE: self.limit - 1, CHECK: True}


def field_of(suite: str, below: str) -> str:
    """Path of a suite's field, for messages."""
    return f"spec.suites[{suite}].{below}"


FIELDS: Final = {
    "spec.environment.entrypoint": "image",
    "spec.environment.image": "image",
    "spec.agent.sandboxed.command": "image",
    "spec.environment.config": "args",
}
"""Field that a sandbox names in an error -> the field of the suite, if the names differ."""


def field_in_suite(suite: str, field: str | None) -> str:
    """Path of the suite's field that an error of its sandbox is about.

    A sandbox names fields as if it ran `spec.environment`. If `field` is None, the path is that of the image.
    """
    if field is None:
        return field_of(suite, "image")
    if field.startswith("suite."):
        return field_of(suite, field.removeprefix("suite."))
    return field_of(suite, FIELDS.get(field, field.removeprefix("spec.environment.")))
