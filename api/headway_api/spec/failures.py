"""Rules for what happens after a process fails, modelled on the pod failure policy of a batch/v1 Job."""

from typing import Annotated, Final, Literal

from pydantic import Field

from headway_api import exits
from headway_api.base import SpecModel
from headway_api.rules import Rule

FailureRole = Literal["coordinator", "learner", "rollout", "broker", "judge"]
FailureAction = Literal["FailJob", "Ignore", "Count", "Restart"]
OWN_CODES: Final = (exits.PERMANENT, exits.RESTART)
"""Exit codes with a fixed meaning, which are judged before any rule."""


class ExitCodes(SpecModel):
    """Exit codes of the role's own container. 0 is not a failure and never matches."""

    validations = (
        Rule(
            "self.operator != 'In' || !self.values.exists(code, code == 0)",
            "spec.failurePolicy.rules: exit code 0 is not a failure; remove it from values",
            lambda self: self.operator != "In" or 0 not in self.values,
            "values",
        ),
        Rule(
            f"self.operator != 'In' || !self.values.exists(code, code in {list(OWN_CODES)})",
            f"spec.failurePolicy.rules: exit codes {OWN_CODES[0]} (a change is needed: the job fails) and "
            f"{OWN_CODES[1]} (nothing failed: not counted) precede every rule; remove them from values",
            lambda self: self.operator != "In" or not set(OWN_CODES) & set(self.values),
            "values",
        ),
    )

    operator: Literal["In", "NotIn"]
    """In: one of the values. NotIn: none of them."""
    values: Annotated[tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(min_length=1, max_length=255)]
    """The codes, in any order. A process that a signal ended has 128 plus the signal's number: 137 is
    SIGKILL, for instance after memory ran out."""


class PodConditionPattern(SpecModel):
    """A condition that the failed pod has."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
    """Type of the condition, such as DisruptionTarget."""
    status: Literal["True", "False", "Unknown"] = "True"
    """Status of the condition, as a string."""


class FailureRule(SpecModel):
    """What happens after a failure. The first rule that matches decides."""

    validations = (
        Rule(
            "has(self.onExitCodes) != (has(self.onPodConditions) && size(self.onPodConditions) > 0)",
            "a rule of spec.failurePolicy.rules takes exactly one of onExitCodes and onPodConditions; make "
            "two rules of it",
            lambda self: (self.on_exit_codes is not None) != bool(self.on_pod_conditions),
        ),
    )

    action: FailureAction
    """FailJob: the job fails at once, and names the rule. Ignore: the process starts again, and nothing is
    counted. Count: the process starts again, and the failure counts against maxRestarts, as without a rule.
    Restart: all running pods of the role start again together, which counts as one failure. If a role has
    several sets of servers, suites or judges, only the pods of the failed pod's set, suite or judge start
    again."""
    role: FailureRole | None = None
    """Role whose pods the rule is about. Absent: any of these roles. There is no role for sandboxes: each
    lives for one episode, whose outcome reports the failure."""
    on_exit_codes: ExitCodes | None = None
    """Matches by the exit code of the role's container."""
    on_pod_conditions: Annotated[tuple[PodConditionPattern, ...], Field(max_length=20)] = ()
    """Matches a failed or evicted pod that has one of these conditions."""
