"""The simulated learner of the tests reports the same metrics as a real learner."""

from __future__ import annotations

import learner_rig
from played_course import LEARNERS, Course


def test_a_played_step_has_each_declared_metric_of_a_learner() -> None:
    found = Course().metrics(1, learner_rig.batch(1).groups)
    assert found.keys() == LEARNERS
