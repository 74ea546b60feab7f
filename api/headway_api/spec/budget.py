"""RLBudget: what the jobs of a namespace may cost together."""

from typing import Literal

from pydantic import Field

from headway_api.base import Model
from headway_api.grants import RLBudgetStatus
from headway_api.names import BUDGET_NAME
from headway_api.rules import Rule
from headway_api.spec.lifecycle import RLBudgetSpec
from headway_api.spec.metadata import Metadata


class RLBudget(Model):
    """The budget of a namespace. Its jobs share it, and together never use more than its limits
    (docs/budget.md)."""

    validations = (
        Rule(
            f"self.metadata.name == '{BUDGET_NAME}'",
            f"metadata.name must be {BUDGET_NAME}: a namespace has one RLBudget",
            lambda self: self.metadata.name in ("", BUDGET_NAME),
            "metadata",
        ),
    )

    api_version: Literal["headway.dev/v1alpha1"] = "headway.dev/v1alpha1"
    """Version of the schema."""
    kind: Literal["RLBudget"] = "RLBudget"
    """Kind of the object."""
    metadata: Metadata
    """Standard object metadata."""
    spec: RLBudgetSpec
    """The limits."""
    status: RLBudgetStatus = Field(default_factory=RLBudgetStatus)
    """How much of each limit is used."""
