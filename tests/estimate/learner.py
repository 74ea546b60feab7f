"""The product's learner on one rank, behind the API that connects a learner's process to its coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from job_rig import manifest
from scripted_learner import ScriptedLearner
from tests.estimate.served import Served
from tests.signals.learner import Learner

from headway_api.artifacts import Layout
from headway_api.objective import episode_tokens
from headway_api.records import Batch, GroupRecord, StepReport, WeightsManifest
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import Store
from headway_trainer.batch import training_batch
from headway_trainer.objective.presets import Objective


class Trained(ScriptedLearner):
    """Takes the coordinator's batches, trains on them, and reports which tokens the model computed."""

    def __init__(
        self,
        url: str,
        token: str,
        store: Store,
        layout: Layout,
        spec: RLTrainingJobSpec,
        base: Path,
        served: Served,
    ) -> None:
        super().__init__(url, token, store, layout, self._published)
        self._spec, self._served, self._learner = spec, served, Learner(spec, base)
        self._objective = Objective.of(spec.algorithm, episode_tokens(spec))

    def commit(self, step: int, groups: list[GroupRecord], **fields: Any) -> StepReport:
        """Train, then make the step durable."""
        tokens: dict[str, int] = {}
        if groups:
            batch = Batch(step=step, epoch=0, groups=groups)
            tokens = training_batch(batch, self._objective).train_tokens
            self._learner.train(batch, self._spec)
        self.counted = lambda group: tokens[group.group_id]
        return super().commit(step, groups, **fields)

    def _published(self, step: int) -> WeightsManifest:
        lora = self._spec.model.effective_lora
        found = manifest(step).model_copy(update={"uri": self._layout.weights(step)})
        if lora is None:
            found = found.model_copy(update={"kind": "full"})
        self._served.hold(str(found.version), self._learner.adapter, lora)
        self._store.put(f"{found.uri}/adapter_config.json", b"{}")
        return found
