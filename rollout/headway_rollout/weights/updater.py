"""Loads one manifest after another into one slot: fetch, check, load, prove. Reports the slot's state.

There are two kinds of failure, depending on whether the engine was touched:

* Files may be unavailable, differ from their digests, or not be this model's weights. They are refused, and
  the engine is unchanged. The state keeps its version and reports `error`, and the coordinator may post
  again. The same applies if weights come from a learner's memory and the engine cannot meet the learner.
* Once the engine was asked to take weights, an error means that nobody knows what the engine computes. Such
  an error is a refusal, a missed deadline, or a canary outside its tolerance. The state is permanently not
  ready. The engine is killed at once, so that no request in flight can finish on such weights. The process
  ends with a retriable error. Kubernetes starts it again with a clean engine, which takes the next manifest.
  An engine that hangs is treated the same. If a signal killed the engine, the error names the signal.

A failure of the second kind ends the engine only if the slot is the trained policy's. An adapter of another
slot does not affect the other weights of the engine. If such an adapter cannot be verified, it is unloaded.
Its slot is then not ready, and the other slots continue.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from headway_api.exits import JobError
from headway_api.logs import event
from headway_api.model_names import POLICY
from headway_api.records import Canary, LoadFailure, WeightsManifest, WeightsState
from headway_api.store import CorruptFileError, ObjectNotFoundError, Store
from headway_rollout.engine import Engine, EngineError, LearnerNotMetError, WrongWeightsError
from headway_rollout.model import STORE_FAILURES
from headway_rollout.weights import canary
from headway_rollout.weights.checks import UnusableManifestError, check_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from headway_rollout.weights.loaders import Loader

log = logging.getLogger(__name__)

UNTOUCHED: Final = (
    UnusableManifestError,
    CorruptFileError,
    ObjectNotFoundError,
    LearnerNotMetError,
    *STORE_FAILURES,
)
"""Errors of a load that has not touched the engine: no usable files, or the learner was not met."""


class NotVerifiedError(Exception):
    """The engine does not compute what the learner computed."""


UNVERIFIED: Final = (UnusableManifestError, CorruptFileError, NotVerifiedError, WrongWeightsError)
"""Errors which mean that files or the engine's weights are not those of the manifest."""


def kind_of(error: Exception) -> LoadFailure:
    """The kind of a failure, as the coordinator receives it."""
    return "VerificationFailed" if isinstance(error, UNVERIFIED) else "UpdateFailed"


def failure_text(error: Exception) -> str:
    """A failure as text."""
    return f"{type(error).__name__}: {error}"


NOTHING: Final = WeightsState(version=None, ready=False)
"""State of a slot that has received nothing yet."""


def unverified(error: Exception, measured: float | None) -> WeightsState:
    """State after a load that could not be verified; `measured` is the canary's difference, if known."""
    finite = measured if measured is not None and measured != float("inf") else None
    return WeightsState(
        version=None, ready=False, error=failure_text(error), reason=kind_of(error), canary_error=finite
    )


def ended(error: JobError) -> WeightsState:
    """State of a slot whose engine can no longer be trusted. The engine takes no more weights."""
    why = f"{error.termination.reason}: {error}"
    return WeightsState(version=None, ready=False, error=why, reason="UpdateFailed")


async def nothing_known() -> str | None:
    """The default of `WeightUpdater`'s `kill`: ends no process, and reports no signal."""
    return None


class WeightUpdater:
    """Loads manifests into one slot, one at a time.

    Invariant: if `state.ready` is true, the canary of `state.version` passed on this very engine, unless its
    manifest has no canary.
    """

    def __init__(
        self,
        engine: Engine,
        loader: Loader,
        store: Store,
        folder: Path,
        *,
        slot: str = POLICY,
        failed: asyncio.Future[JobError] | None = None,
        final: bool = True,
        kill: Callable[[], Awaitable[str | None]] = nothing_known,
    ) -> None:
        """Create the updater of one slot.

        Args:
            failed: future that all slots of the engine share; done when the engine can no longer be trusted.
            final: whether an unverified load ends the engine.
            kill: ends the engine. If a signal had killed it before, returns a sentence about that, else None.
        """
        self._kill = kill
        self._engine = engine
        self._loader = loader
        self._store = store
        self._folder = folder
        self._slot = slot
        self._final = final
        self._one_at_a_time = asyncio.Lock()
        self._state = NOTHING
        self._leaving = False
        self.failed: asyncio.Future[JobError] = failed or asyncio.get_running_loop().create_future()
        """Done when the engine can no longer be trusted."""

    @property
    def state(self) -> WeightsState:
        """The slot's state. If the engine has failed, it is not ready, and its error gives the reason."""
        if self.failed.done() and (self._state.ready or self._state.error is None):
            return ended(self.failed.result())
        return self._state

    @property
    def leaving(self) -> bool:
        """Whether the slot was released and no manifest for it has arrived since."""
        return self._leaving

    def release(self) -> None:
        """Mark the slot as released. `let_go` then releases its weights."""
        self._leaving = True
        self._settle(NOTHING)

    async def let_go(self) -> bool:
        """If `leaving`, release the weights that no request uses. Return whether none are left."""
        async with self._one_at_a_time:
            if not self._leaving:
                return False
            self._settle(NOTHING)
            try:
                return await self._loader.release()
            except EngineError as error:
                event(log, "not released", logging.WARNING, slot=self._slot, why=failure_text(error))
                return False

    async def take(self, manifest: WeightsManifest) -> WeightsState:
        """Load `manifest` into the slot, unless the slot holds its version already. Return the new state."""
        self._leaving = False
        async with self._one_at_a_time:
            if self.failed.done() or (self._state.ready and self._state.version == manifest.version):
                return self.state
            before, started = self._state, time.monotonic()
            self._state = before.model_copy(update={"ready": False, "error": None, "reason": None})
            try:
                folder = await self._fetched(manifest)
            except UNTOUCHED as error:
                self._settle(
                    before.model_copy(update={"error": failure_text(error), "reason": kind_of(error)})
                )
            else:
                await self._load(manifest, folder, started)
            self._report(manifest)
            return self.state

    async def _fetched(self, manifest: WeightsManifest) -> Path:
        check_manifest(manifest, self._loader.kinds)
        folder = self._folder / str(manifest.version)
        if not self._loader.holds(manifest):
            await self._fetch(manifest, folder)
        return folder

    async def _fetch(self, manifest: WeightsManifest, folder: Path) -> None:
        # An earlier try may have left a folder of this name, which the engine never loaded.
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        try:
            await self._loader.fetch(self._store, manifest, folder)
        except UNTOUCHED:
            # The folder may be as large as a model, and may never be needed again.
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise

    async def _load(self, manifest: WeightsManifest, folder: Path, started: float) -> None:
        measured: float | None = None
        try:
            await self._loader.load(manifest, folder)
            if manifest.canary is not None:
                measured = await self._measure(self._loader.model(manifest), manifest.canary)
                if not canary.agrees(measured, manifest.canary.tolerance):
                    raise NotVerifiedError(
                        f"log-probabilities differ from the learner's by {measured:.3g} on average, "
                        f"tolerance {manifest.canary.tolerance:.3g}"
                    )
            await self._loader.tidy()
        except (EngineError, NotVerifiedError) as error:
            await self._fail(manifest, error, unverified(error, measured))
            return
        seconds = time.monotonic() - started
        self._settle(
            WeightsState(version=manifest.version, ready=True, canary_error=measured, seconds=seconds)
        )

    async def _measure(self, model: str, expected: Canary) -> float:
        tokens, at = expected.tokens, canary.positions(len(expected.logprobs))
        found = await asyncio.gather(
            *(self._engine.next_logprob(model, tokens[: i + 1], tokens[i + 1]) for i in at)
        )
        return canary.difference([expected.logprobs[i] for i in at], found)

    async def _fail(self, manifest: WeightsManifest, error: Exception, state: WeightsState) -> None:
        if self._final:
            await self._fail_engine(manifest, error, state)
            return
        try:
            await self._loader.drop(manifest)
        except EngineError as refused:
            event(log, "not unloaded", logging.WARNING, slot=self._slot, why=failure_text(refused))
        self._settle(state)

    async def _fail_engine(self, manifest: WeightsManifest, error: Exception, state: WeightsState) -> None:
        # The state after this load should name the signal, so find the signal before setting the state.
        died = await self._kill() if isinstance(error, EngineError) else None
        if died is not None:
            why = f"{died}; it was loading weights {manifest.version}"
            dead = JobError("EngineDied", why, permanent=False)
            self._end(ended(dead), dead)
        else:
            message = f"weights {manifest.version} were not verified: {failure_text(error)}"
            self._end(state, JobError("WeightsNotVerified", message, permanent=False))

    def _end(self, state: WeightsState, error: JobError) -> None:
        self._settle(state)
        if not self.failed.done():
            self.failed.set_result(error)

    def _settle(self, state: WeightsState) -> None:
        """Record the state, unless the engine has already failed. A load that the failure interrupted must
        not replace the state of the failure."""
        if not self.failed.done():
            self._state = state

    def _report(self, manifest: WeightsManifest) -> None:
        state = self._state
        event(
            log, "weights", logging.INFO if state.error is None else logging.ERROR, slot=self._slot,
            wanted=str(manifest.version), held=str(state.version), ready=state.ready, error=state.error,
            reason=state.reason, canary_error=state.canary_error, seconds=state.seconds,
        )  # fmt: skip
