"""The remedies that were taken, as tags of the run in MLflow."""

from __future__ import annotations

from headway_analysis.remedies.course import Course
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.metrics.mlflow import Mlflow
from headway_coordinator.remedies import shown
from headway_coordinator.remedies.driver import Remedies


class RemedyTags:
    """Writes the tags again whenever the remedies have changed."""

    def __init__(self, spec: RLTrainingJobSpec) -> None:
        self._spec = spec
        self._tagged = Course()
        """The remedies that the run in MLflow shows already."""

    def write(self, tracker: Mlflow | None, remedies: Remedies) -> None:
        """Write the remedies that were taken into the run in MLflow."""
        if tracker is None or remedies.course == self._tagged:
            return
        self._tagged = remedies.course
        if remedies.course.entries:
            tracker.tag(shown.tags(remedies.course, self._spec, remedies.now))
