"""What a candidate must not have lost: tasks of Inspect AI, run beside the job's own rows."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule
from headway_api.spec.environment import EnvironmentSpec, Sandbox
from headway_api.spec.types import FreeForm, Label

RESERVED: Final = ("all", "other")
"""Names of tasks that stand for several."""
ENTRYPOINT: Final = "headway_sandbox.suites.environment:InspectSample"
"""The class in the sandbox image that runs one sample."""
PROGRAM: Final = ("python3", "-m", "headway_sandbox.suites.program")
"""What acts in an episode of a suite."""
BOUNDS: Final = (-1e6, 1e6)
"""Lowest and highest score of a sample: a scorer's scale is its own."""
SAMPLE: Final = "sample"
"""Column of a suite's rows: index into the task's dataset."""
CHECK: Final = "check"
"""Column of the one row by which the preflight has the task loaded."""


class Suite(SpecModel):
    """A task of Inspect AI (inspect.aisi.org.uk) that every candidate is measured on too. Each of its samples
    is an episode like any other; in the results its name stands as the task."""

    name: Annotated[
        Label,
        Field(max_length=40),
        Rule(
            "!(self in ['" + "', '".join(RESERVED) + "'])",
            "the name of a suite must not be all or other, which stand for several tasks; rename it",
            lambda value: value not in RESERVED,
        ),
    ]
    """Name of the task in the results, for the gate too. No value of spec.data.taskColumn may equal it."""
    image: Annotated[str, Field(min_length=1, max_length=512)]
    """Container image: Headway's sandbox image with inspect-ai, openai, the task and its dataset added. Its
    pods reach the candidate and nothing else, so nothing can be fetched while a sample runs."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When nodes pull the image. Absent: as Kubernetes does, Always for :latest, else IfNotPresent."""
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
    """Measure on the first so many samples, in the order of the task's dataset."""
    epochs: Annotated[int, Field(ge=1, le=32)] = 1
    """Tries on each sample."""
    sandbox: Sandbox = Sandbox()
    """The pod each sample runs in. Inspect AI takes seconds of a CPU to start: give it one."""

    @property
    def environment(self) -> EnvironmentSpec:
        """A sample as an episode: what its sandbox runs."""
        return EnvironmentSpec(
            image=self.image,
            image_pull_policy=self.image_pull_policy,
            entrypoint=ENTRYPOINT,
            config={"task": self.task, "args": dict(self.args or {})},
            sandbox=self.sandbox,
        )

    def row(self, sample: int) -> dict[str, Any]:
        """What an episode on one of its samples begins with."""
        return {SAMPLE: sample}

    @property
    def last_row(self) -> dict[str, Any]:
        """The row of the last sample, by which the preflight learns whether there are so many."""
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
"""Field that a sandbox names -> the suite's own, where that is another."""


def field_said(suite: str, field: str | None) -> str:
    """The field of a suite for the one that its sandbox names, as of any environment."""
    if field is None:
        return field_of(suite, "image")
    if field.startswith("suite."):
        return field_of(suite, field.removeprefix("suite."))
    return field_of(suite, FIELDS.get(field, field.removeprefix("spec.environment.")))
