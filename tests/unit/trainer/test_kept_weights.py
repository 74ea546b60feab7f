"""Which published weights a learner leaves in the store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import learner_rig
import pytest
from tiny_model import write_model

from headway_api.artifacts import Layout, by_number
from headway_api.store import FileStore
from headway_api.weights_format import MODEL_FILE
from headway_trainer.learner import Learner

FULL_EVERY = 10


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_newest_full_version_stays_while_later_are_in_memory(in_memory: bool, tmp_path: Path) -> None:
    config = learner_rig.job(tmp_path, write_model(tmp_path / "base"))
    spec, store = config.spec, FileStore()
    assert (spec.learner.weights.full_every_steps, spec.evaluation.every_steps) == (FULL_EVERY, 0)
    layout = Layout(spec.output.uri, config.namespace, config.name, config.uid)
    for step in (0, 10, 20):
        store.put(f"{layout.weights(step)}/{MODEL_FILE}", b"model")
    learner: Any = object.__new__(Learner)
    learner._ranks = SimpleNamespace(first=True)
    learner._spec, learner._store, learner._layout = spec, store, layout
    learner._parts = SimpleNamespace(spec=spec)
    learner._sender = object() if in_memory else None
    learner.checkpointer = SimpleNamespace(prune=lambda validated, validating: [26, 27])
    learner.prune(27, [], [10])
    left = by_number(store.list(layout.all_weights), layout.all_weights)
    assert sorted(left) == ([0, 10, 20] if in_memory else [0, 10]), "step 10 is being validated"
    learner.prune(27, [])
    left = by_number(store.list(layout.all_weights), layout.all_weights)
    assert sorted(left) == ([0, 20] if in_memory else [0])
