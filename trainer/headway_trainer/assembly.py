"""The parts that train under the settings in force: objective, model, engine, policy, publisher.

Some parts change in place: the objective, the learning rate, and the frozen copy for the divergence penalty.
A different adapter or an older checkpoint needs a new engine. Then all parts are rebuilt in this process from
the base model's files, as at the start of a process.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from torch import nn

from headway_api.exits import JobError
from headway_api.in_force import DirectiveRefusal, InForce
from headway_api.objective import episode_tokens
from headway_api.remedies import NotApplicableError, applied
from headway_api.spec.model import Lora
from headway_api.spec.training import RLTrainingJobSpec
from headway_trainer import adapter, layout, memory
from headway_trainer import model as models
from headway_trainer.adapter import TrainedState
from headway_trainer.engine import Engine
from headway_trainer.logs import log
from headway_trainer.objective.presets import Objective
from headway_trainer.policy import Policy
from headway_trainer.publish.publisher import Publisher
from headway_trainer.publish.sender import Sender
from headway_trainer.ranks import Ranks

MAX_TOKENS: Final = {"cuda": 16384, "cpu": 4096}
"""Maximum tokens of one micro-batch, by device. On a CPU, more tokens need more memory and are no faster."""


class Assembly:
    """The parts that train. Methods are collective; every rank passes the same arguments."""

    objective: Objective
    engine: Engine
    policy: Policy
    publisher: Publisher

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        in_force: InForce,
        base: Path,
        scratch: Path,
        ranks: Ranks,
        sender: Sender | None,
    ) -> None:
        """There are no parts before `put_together`. `base` holds the base model's files."""
        self._given = spec
        self._base = base
        self._scratch = scratch
        self._ranks = ranks
        self._sender = sender
        self.in_force = in_force
        self.spec = _resumed(spec, in_force)
        """The job's spec, with the settings in force instead of its own."""
        self.max_tokens = spec.learner.micro_batch_tokens or MAX_TOKENS[ranks.device.type]
        """Maximum tokens of one micro-batch."""

    def put_together(self, model: nn.Module, state: TrainedState | None = None) -> None:
        """Make all parts for `model`, which is on the CPU, with the settings in `self.spec`.

        Args:
            state: the state for the optimizer. The model must already have its weights (`adapter.fill`).
        Raises:
            JobError: `RanksDiffer`, or an error of `Objective.of`.
        """
        spec, ranks = self.spec, self._ranks
        self.objective = Objective.of(spec.algorithm, episode_tokens(spec))
        if spec.learner.recomputes_activations(accelerated=ranks.device.type == "cuda"):
            models.save_memory(model)
        quadratic = layout.quadratic_share(model)
        horizon = spec.schedule.max_steps * spec.algorithm.updates_per_batch
        self.engine = Engine(model, spec.learner.deepspeed, spec.optimizer, ranks, horizon)
        if state is not None:
            self.engine.adopt(state)
        self.policy = Policy(
            self.engine,
            model,
            temperature=spec.rollout.sampling.temperature,
            frozen=models.reference(self._base, spec, ranks.device),
        )
        self._choice = layout.choose(self.policy, ranks.device, quadratic)
        _require_one({(c.layout.packed, c.attention, c.head) for c in ranks.gather(self._choice)})
        self.publisher = Publisher(
            self.engine, self.policy, spec, self._base, self._scratch, ranks, self._sender
        )
        log("objective", **self.objective.expanded())
        chosen = self._choice
        log(
            "layout",
            packed=chosen.layout.packed,
            attention=chosen.attention,
            head=chosen.head,
            why=chosen.why,
            micro_batch_tokens=self.max_tokens,
        )

    def obstacle(self, in_force: InForce, *, rebuilt: bool = False) -> DirectiveRefusal | None:
        """Why a rank cannot `bring` the settings `in_force`; None if every rank can. It changes nothing.

        Args:
            rebuilt: whether `rebuild` runs before `bring`, for a checkpoint whose adapter is not wider.
        """
        return next(filter(None, self._ranks.gather(self._obstacle(in_force, rebuilt))), None)

    def _obstacle(self, in_force: InForce, rebuilt: bool) -> DirectiveRefusal | None:
        try:
            spec = applied(self._given, in_force)
            Objective.of(spec.algorithm, episode_tokens(spec))
        except NotApplicableError as why:
            return DirectiveRefusal(reason="NotApplicable", message=str(why))
        except JobError as error:
            return DirectiveRefusal(reason="NotApplicable", message=error.termination.sentence)
        now, wanted = _rank(self.spec), _rank(spec)
        if not rebuilt and wanted < now:
            return DirectiveRefusal(
                reason="AdapterCannotNarrow",
                message=f"lowering the adapter's rank from {now} to {wanted} would change its results; "
                "restore a checkpoint from before it was widened",
            )
        if self._lacks_copy(spec) and (short := self._short_of_memory()):
            return DirectiveRefusal(
                reason="TooLittleMemory",
                message="each process of the learner also needs a frozen copy of the base model "
                f"({short}). Give the learner more memory, or train an adapter, which already has the base",
            )
        return None

    def rank(self, in_force: InForce) -> int:
        """Rank of the adapter under `in_force`; 0 if every weight is trained.

        Raises:
            NotApplicableError: `in_force` does not fit the spec.
        """
        return _rank(applied(self._given, in_force))

    def rebuild(self, in_force: InForce) -> None:
        """Rebuild all parts for `in_force` from the base model's files. The caller then loads a
        checkpoint."""
        self._take_apart()
        self.in_force, self.spec = in_force, applied(self._given, in_force)
        self.put_together(models.load(self._base, self.spec.model, self.spec.seed))

    def bring(self, in_force: InForce) -> None:
        """Apply `in_force` from now on; no effect if it already applies. Call `obstacle` first."""
        before, self.in_force = self.spec, in_force
        self.spec = spec = applied(self._given, in_force)
        if spec.model.effective_lora != before.model.effective_lora:
            self._widen(spec.model.effective_lora)
            return
        self.engine.optimizer = spec.optimizer
        if spec.algorithm != before.algorithm:
            self.objective = Objective.of(spec.algorithm, episode_tokens(spec))
            log("objective", **self.objective.expanded())
        if self._lacks_copy(spec):
            self.policy.refer_to(models.reference(self._base, spec, self._ranks.device))
            layout.follow(self.policy, self._choice)
        elif not self.objective.penalizes_divergence and self.policy.frozen is not None:
            self.policy.refer_to(None)
            memory.release()

    def follow(self, spec: RLTrainingJobSpec, in_force: InForce) -> None:
        """Train with `spec` from now on, instead of the job's own spec; only its algorithm may differ.

        Raises:
            JobError: `spec` does not fit the settings in force, or this learner cannot apply it.
        """
        self._given = spec
        if (refusal := self.obstacle(in_force)) is not None:
            raise JobError(refusal.reason, refusal.message, field="spec.algorithm")
        self.bring(in_force)

    def _widen(self, lora: Lora | None) -> None:
        assert lora is not None
        state, scales = self.engine.state(), adapter.scales(self.engine.model)
        self._take_apart()
        # Another seed than the adapter's first one: new rows must not repeat the first rows of another
        # module.
        model = models.load(self._base, self.spec.model, self.spec.seed + lora.rank)
        state = adapter.widened(state, scales, model)
        adapter.fill(model, state)
        self.put_together(model, state)

    def _take_apart(self) -> None:
        self.engine.close()
        del self.engine, self.policy, self.publisher
        memory.release()

    def _lacks_copy(self, spec: RLTrainingJobSpec) -> bool:
        """Whether `spec` needs a frozen copy of the base model that does not exist yet."""
        return models.needs_copy(spec) and self.policy.frozen is None

    def _short_of_memory(self) -> str:
        processes = self._given.learner.processes_per_node
        return memory.short_of(memory.size(self.engine.model), processes, self._ranks.device)


def _rank(spec: RLTrainingJobSpec) -> int:
    lora = spec.model.effective_lora
    return 0 if lora is None else lora.rank


def _resumed(spec: RLTrainingJobSpec, in_force: InForce) -> RLTrainingJobSpec:
    try:
        return applied(spec, in_force)
    except NotApplicableError as why:
        raise JobError(
            "CheckpointUnusable",
            f"directive {in_force.number}, in force at the checkpoint, does not fit the spec ({why}); set "
            "latest.json in the job's folder to an older step",
            permanent=False,
        ) from why


def _require_one(choices: Collection[tuple[bool, str, str]]) -> None:
    """Refuse ranks that chose different layouts.

    Each rank plans the whole step. With another layout it would train other rows than the other ranks expect.

    Raises:
        JobError: `RanksDiffer`.
    """
    if len(choices) > 1:
        raise JobError(
            "RanksDiffer",
            f"the processes of the learner chose different layouts of rows ({sorted(choices)}); give them "
            "nodes of one kind",
            field="spec.learner.podTemplate",
            permanent=False,
        )
