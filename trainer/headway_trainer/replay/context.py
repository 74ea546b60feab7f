"""The context of a replay: its folder, an overlay over the run's store, and the job with changed paths."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.replay import STORE, ReplayRequest
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.weights import WeightsSpec
from headway_api.store import Store, open_store
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.signer import Signer
from headway_trainer.replay.overlay import Overlay

WHOLE: Final = WeightsSpec(backend="file")
"""Publishes all weights at every step. A replay has no servers that hold the last version or fetch from
memory.
"""


class ReplayContext:
    """The context of one replay, the same in each of its processes."""

    def __init__(self, folder: Path, request: ReplayRequest) -> None:
        """Open the run's store.

        Raises:
            JobError: `BucketUnavailable`: the store cannot be used.
        """
        self.folder = folder
        self.request = request
        config = request.config
        self.layout = Layout(self._uri, config.namespace, config.name, config.uid)
        self.run_store: Store = open_store(request.run)
        hidden = (self.layout.latest, self.layout.learners)
        self.store = Overlay(self.run_store, request.run.uri, self.layout.root, hidden)

    @property
    def config(self) -> JobConfig:
        """The job, with its artifacts in the replay's folder."""
        config = self.request.config
        return config.model_copy(update={"spec": self.here(config.spec)})

    def here(self, spec: RLTrainingJobSpec) -> RLTrainingJobSpec:
        """`spec`, with its artifacts in the replay's folder."""
        output = self.request.run.model_copy(update={"uri": self._uri})
        learner = spec.learner
        if spec.model.effective_lora is None:  # an adapter is always published whole
            learner = learner.model_copy(update={"weights": WHOLE})
        return spec.model_copy(update={"output": output, "learner": learner})

    @property
    def key(self) -> str:
        """The job's key for checkpoints. Without it, a random key, which opens none of the run's
        checkpoints."""
        given = self.request.key
        return secrets.token_hex() if given is None else Path(given).read_text().strip()

    def journal(self) -> Journal:
        """The journal of the run, read and written through the overlay."""
        return Journal(self.store, self.layout, Signer.of(self.key, self.layout))

    def published(self, step: int) -> str:
        """Folder of the weights that the run published for a step, in the run's own store."""
        below = self.layout.weights(step).removeprefix(self.layout.root)
        return self.request.run.uri.rstrip("/") + below

    @property
    def _uri(self) -> str:
        return f"file://{self.folder / STORE}"
