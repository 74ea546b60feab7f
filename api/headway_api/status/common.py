"""Types and blocks that the status of training jobs and the status of evaluations share."""

from typing import Annotated, Any, Literal

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.field_types import Count, Word

State = Literal[
    "Pending",
    "Queued",
    "Starting",
    "Preflight",
    "Training",
    "Evaluating",
    "Suspending",
    "Suspended",
    "Restarting",
    "Stalled",
    "Complete",
    "Failed",
]


Generation = Annotated[int, Field(ge=-1)]


Text = Annotated[str, Field(max_length=1024)]


def list_map(key: str) -> dict[str, Any]:
    """Schema of a list whose entries operator and coordinator may own separately; `key` identifies an
    entry."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def decimal(value: float, digits: int = 4) -> str:
    """A finite float as text for the status: fixed point, without trailing zeros."""
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


class Role(StatusModel):
    """The pods of one role."""

    name: Word
    """learner, rollout, coordinator, broker or judge."""
    desired: Count = 0
    """Pods that should run."""
    ready: Count = 0
    """Pods that are ready."""
    restarts: Count = 0
    """Restarts after failures; disruptions do not count."""
    message: Text | None = None
    """What keeps pods from being ready, in the Kubernetes API's own words."""


class MlflowRun(StatusModel):
    """The run in MLflow."""

    experiment_id: Word
    """Id of the experiment."""
    run_id: Word
    """Id of the run."""
    url: Text | None = None
    """Address of the run's page in MLflow's user interface."""


class Tracking(StatusModel):
    """Where metrics are tracked."""

    mlflow: MlflowRun | None = None
    """The run in MLflow."""
