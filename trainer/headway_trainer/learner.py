"""The learner: loads the model, and resumes from `latest.json` or makes step 0 durable. `loop` then trains.

The ranks see the same batch and take the same decisions. If killed at any point, the learner resumes at the
last durable step. It then takes the later steps again, from the same groups.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway_api import config as job_config
from headway_api import keys, last_logs, names
from headway_api.artifacts import Layout, by_number
from headway_api.base_model import fetch
from headway_api.config import JobConfig
from headway_api.exits import RESTART, JobError, leave, not_final
from headway_api.in_force import DirectiveRefusal, InForce
from headway_api.keys import Key
from headway_api.records import Batch, PolicyVersion, StepReport
from headway_api.spec.model import ModelSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import Store, open_store
from headway_api.store_unavailable import Patience, store_explained
from headway_trainer import warm_start
from headway_trainer.assembly import Assembly
from headway_trainer.batch import TrainingBatch, mini_batches, training_batch
from headway_trainer.checkpoint.journal import Journal
from headway_trainer.checkpoint.manager import CheckpointManager
from headway_trainer.checkpoint.manifest import Checkpoint
from headway_trainer.checkpoint.retention import due, expired_weights
from headway_trainer.checkpoint.signer import Signer
from headway_trainer.coordinator_client import CoordinatorClient
from headway_trainer.directives import Directives
from headway_trainer.logs import log
from headway_trainer.loop import serve
from headway_trainer.metrics import step_metrics, without_groups
from headway_trainer.probes import Probes
from headway_trainer.publish.links import built_on, delta_steps
from headway_trainer.publish.sender import Sender, sender_of
from headway_trainer.ranks import Ranks
from headway_trainer.step import optimizer_step, refuse_non_finite, with_old
from headway_trainer.stopwatch import Stopwatch
from headway_trainer.termination import AT_END, EXIT, SHUTDOWN_GUARD, end, exit_on_sigterm, live


class Learner:
    """Weights and optimizer of one job, and the artifacts that it writes. Every method is collective, except
    `prepare` and `announced`."""

    def __init__(
        self,
        config: JobConfig,
        key: str,
        store: Store,
        base: Path,
        cache: Path,
        ranks: Ranks,
        sender: Sender | None,
    ) -> None:
        """`key` signs records of checkpoints, and `base` holds the base model's files. `cache` is scratch
        space that the ranks of a node share."""
        spec = config.spec
        self._spec = spec
        self._store = store
        self._ranks = ranks
        self._layout = Layout(spec.output.uri, config.namespace, config.name, config.uid)
        self._journal = Journal(store, self._layout, Signer.of(key, self._layout))
        # Read the checkpoint's record before loading the model: its settings in force say which model to
        # load.
        self._latest: Checkpoint | None = ranks.share(self._journal.begin() if ranks.first else None)
        scratch = cache / "learner"
        self._sender = sender
        self._parts = Assembly(spec, self._in_force(), base, scratch / "weights", ranks, sender)
        resumed = config.model_copy(update={"spec": self._parts.spec})
        self._parts.put_together(warm_start.load(resumed, store, base, cache, ranks))
        self.checkpointer = CheckpointManager(
            spec.checkpoints,
            self._parts.engine,
            store,
            self._layout,
            self._journal,
            scratch / "checkpoint",
            ranks,
        )
        self._directives = Directives(self._parts, self.checkpointer, self._journal, ranks)

    def _in_force(self) -> InForce:
        """The settings in force at the step to resume from."""
        return InForce() if self._latest is None else self._latest.report.in_force

    def resume(self) -> StepReport:
        """Resume the newest durable step. For a new job, make step 0 durable: the untrained weights."""
        if (latest := self._latest) is None:
            log("new job")
            report = self._finish(PolicyVersion(incarnation=0, step=0), Stopwatch(), lambda seconds: {})
            # Make step 0 durable before announcing it. A crash in between would otherwise make a second step
            # 0 that looks like the announced one.
            self.checkpointer.save(report)
            self.checkpointer.settle()
            return report
        self.checkpointer.restore(latest)
        self._parts.publisher.offer_again(latest.report.weights)
        if self._ranks.first:
            self._journal.confirm(latest)
        log("resumed", step=latest.report.step, version=str(latest.report.version))
        return latest.report

    def train(self, batch: TrainingBatch, incarnation: int, before: Stopwatch) -> StepReport:
        """Train one batch, publish its weights and record its step.

        The version advances even if no group has a gradient. `before` has the seconds spent since the last
        step was recorded.

        Raises:
            JobError: `InForceOutOfReach`: this learner cannot apply the settings that the batch needs.
        """
        watch = replace(before, seconds=dict(before.seconds))
        self._catch_up(batch.in_force)
        parts = self._parts
        with watch("policy_update"):
            rows_of_steps = with_old(
                parts.policy,
                parts.objective,
                mini_batches(batch, self._spec.algorithm.updates_per_batch, parts.objective),
                ranks=self._ranks,
                max_tokens=parts.max_tokens,
            )
            updates = [
                optimizer_step(
                    parts.engine,
                    parts.policy,
                    parts.objective,
                    rows,
                    ranks=self._ranks,
                    max_tokens=parts.max_tokens,
                    seed=self._spec.seed,
                )
                for rows in rows_of_steps
            ]
        refuse_non_finite(updates, batch.step, parts.objective.own_losses)
        return self._finish(
            PolicyVersion(incarnation=incarnation, step=batch.step),
            watch,
            lambda seconds: step_metrics(batch, updates, seconds),
            groups=list(batch.group_ids),
            train_tokens=batch.train_tokens,
            waits=batch.waits,
        )

    def remedy(self, batch: Batch, incarnation: int, before: Stopwatch) -> StepReport:
        """Carry out the directive of `batch`, publish the resulting weights and record the step.

        If the learner cannot carry out the directive, it refuses it before changing anything, and takes the
        step without it. `before` has the seconds spent since the last step was recorded.
        """
        watch = replace(before, seconds=dict(before.seconds))
        found = self._directives.decide(batch)
        refused, restored = (found, None) if isinstance(found, DirectiveRefusal) else (None, found)
        if restored is not None:
            self._parts.rebuild(restored.report.in_force)
            self.checkpointer.engine = self._parts.engine
            self.checkpointer.load(restored)
        if refused is None:
            self._bring(batch.in_force)
        fields: dict[str, Any] = {
            "directive": batch.directive,
            "restored": None if restored is None else restored.report.step,
            "refused": refused,
        }
        log("directive", step=batch.step, number=batch.in_force.number, **fields)
        return self._finish(
            PolicyVersion(incarnation=incarnation, step=batch.step),
            watch,
            lambda seconds: without_groups(batch.step, batch.epoch, seconds),
            **fields,
        )

    def _catch_up(self, in_force: InForce) -> None:
        """Apply the settings of directives that an earlier process carried out after the resumed step."""
        if in_force == self._parts.in_force:
            return
        if (refusal := self._parts.obstacle(in_force)) is not None:
            raise JobError(
                "InForceOutOfReach",
                f"this batch needs directive {in_force.number}, which cannot be done ({refusal.reason}: "
                f"{refusal.message})",
                permanent=False,
            )
        log("caught up", number=in_force.number, before=self._parts.in_force.number)
        self._bring(in_force)

    def _bring(self, in_force: InForce) -> None:
        self._parts.bring(in_force)
        self.checkpointer.engine = self._parts.engine

    def follow(self, spec: RLTrainingJobSpec, in_force: InForce) -> None:
        """Train with another spec from now on; see `Assembly.follow`."""
        self._spec = spec
        self._parts.follow(spec, in_force)
        self.checkpointer.engine = self._parts.engine

    def prepare(self, batch: Batch) -> TrainingBatch:
        """Training rows and advantages of a batch. Only rank 0 calls it, before it shares the result.

        It may use the present objective, because no directive can change an advantage.
        """
        return training_batch(batch, self._parts.objective)

    def announced(self) -> None:
        """Note that the coordinator has been informed of the newest weights."""
        if self._sender is not None:
            self._sender.announced()

    def header(self) -> str | None:
        """The result of `Publisher.header`."""
        return self._parts.publisher.header()

    def export(self, newest: StepReport) -> None:
        """Write the newest weights completely into the store, so that they can be served."""
        self._journal.refuse_superseded()
        self._parts.publisher.complete(self._store, newest.weights)

    def prune(self, latest: int, validated: Sequence[int], validating: Sequence[int] = ()) -> None:
        """Delete files of the steps up to `latest` that are no longer kept.

        Args:
            validated: validated steps, the best first.
            validating: steps whose validations are not complete.
        """
        if not self._ranks.first:
            return
        every = self._spec.evaluation.every_steps
        # A directive may have lowered the staleness bound, and servers may still hold older weights.
        lag = max(spec.algorithm.max_steps_off_policy for spec in (self._spec, self._parts.spec))
        checkpoints = self.checkpointer.prune(validated, validating)
        folder = self._layout.all_weights
        uris = self._store.list(folder)
        weights = by_number(uris, folder)
        planned = [step for step in weights if every and due(step, every)]
        # If the learner sends weights from memory, keep the newest full weights in the store: the status
        # names them.
        full_every = self._spec.learner.weights.full_every_steps
        whole = [] if self._sender is None else [latest - latest % full_every]
        compared = [*planned, *validated, *validating, *whole]
        old = expired_weights(weights.keys(), latest, lag, checkpoints, compared)
        # Keep weights with any validation groups: evaluation.everySteps may have changed, and a validation
        # may be running.
        unseen = [step for step in old if not self._store.list(self._layout.validation_groups(step))]
        needed = built_on(weights.keys() - set(unseen), delta_steps(uris, folder))
        self._store.delete(uri for step in unseen if step not in needed for uri in weights[step])

    def _finish(
        self,
        version: PolicyVersion,
        watch: Stopwatch,
        metrics: Callable[[dict[str, float]], dict[str, float]],
        *,
        groups: Sequence[str] = (),
        train_tokens: Mapping[str, int] = MappingProxyType({}),
        **fields: Any,
    ) -> StepReport:
        """Publish the present weights as `version` and record the step.

        Args:
            metrics: a function that makes metrics from seconds, by the last part of a `timing_s/` name.
            fields: further fields of the report.
        """
        self._journal.refuse_superseded()
        with watch("publish_weights"):
            uri = self._layout.weights(version.step)
            weights = self._parts.publisher.publish(self._store, uri, version)
        ended = time.time()
        seconds = watch.complete(ended)
        whole = sum(seconds.values()) - seconds.get("start", 0.0)
        waited = seconds.get("wait_for_batch", 0.0)
        report = StepReport(
            step=version.step,
            version=version,
            groups=list(groups),
            train_tokens=dict(train_tokens),
            weights=weights,
            durable=max(0, self.checkpointer.durable),
            metrics=metrics(seconds | {"training": whole - waited, "step": whole}),
            in_force=self._parts.in_force,
            ended_at=ended,
            **fields,
        )
        if self._ranks.first:
            self._journal.take(report)
        return report


def run(environ: Mapping[str, str]) -> None:
    """Run one learner process.

    Raises:
        JobError: a person must correct something, or a restart of the process may solve the problem.
    """
    started = time.time()
    config = job_config.load(environ)
    own_keys = keys.load(environ, names.LEARNER)
    rank = environ["LOCAL_RANK"]
    container = names.LEARNER if _first_here(environ) else f"{names.LEARNER}-{rank}"
    last_logs.begin(environ, config, own_keys.values(), container)
    AT_END.append(last_logs.keep_at_end)
    cache = Path(environ.get(names.ENV_CACHE, names.CACHE_DIR))
    with not_final():  # the preflight has already used this bucket, so a failure may pass
        store = open_store(config.spec.output, Patience())
    with ThreadPoolExecutor(1) as background:
        # Ranks of a node share the folder: one rank fetches while all import libraries and connect.
        here = _first_here(environ)
        fetching = background.submit(fetched, config.spec.model, store, cache) if here else None
        ranks = Ranks.join()
        folders = ranks.gather(fetching.result() if fetching else None)
    base = folders[ranks.rank - ranks.local_rank]
    assert base is not None
    sender = sender_of(config, own_keys[Key.ROLLOUT_TO_LEARNER], environ, ranks)
    learner = Learner(config, own_keys[Key.CHECKPOINTS], store, base, cache, ranks, sender)
    log("loaded", seconds=round(time.time() - started, 1), processes=ranks.world)
    probes = (
        Probes(int(environ.get(names.ENV_PROBE_PORT, names.PORT_LEARNER))) if ranks.local_rank == 0 else None
    )
    url, key = _coordinator_url(config, environ), own_keys[Key.LEARNER_TO_COORDINATOR]
    coordinator = CoordinatorClient(url, key) if ranks.first else None
    finished = serve(learner, coordinator, ranks, probes, started)
    if sender is not None:
        sender.close()
    if finished is None:
        log("stopped", shutdown_asked=SHUTDOWN_GUARD.asked)
        # If only another rank got SIGTERM, this process has not failed and its pod was not evicted: exit with
        # RESTART.
        end(EXIT if SHUTDOWN_GUARD.asked else RESTART)
    log("finished", reason=finished.reason)
    ranks.leave()


def fetched(model: ModelSpec, store: Store, cache: Path) -> Path:
    """Folder with the base model's files. It raises the errors of `base_model.fetch`, but none is
    permanent."""
    with not_final():  # the preflight has checked that the model exists
        return fetch(model, store, cache)


def _first_here(environ: Mapping[str, str]) -> bool:
    return environ["LOCAL_RANK"] == "0"


def _coordinator_url(config: JobConfig, environ: Mapping[str, str]) -> str:
    return environ.get(names.ENV_COORDINATOR_URL, config.coordinator_url)


def main() -> None:
    """Entry point of every rank."""
    exit_on_sigterm()
    live(_explained)


def _explained() -> None:
    try:
        with store_explained():
            run(os.environ)
    except JobError as error:
        leave(error)


if __name__ == "__main__":
    main()
