"""One manifest after another: fetch, check, load, prove; and what the server says it holds.

Two kinds of failure are told apart by whether the engine was touched:

* Files that cannot be had, differ from their digests or are not this model's weights are refused with the
  engine as it was: the state keeps the version it had, says `error`, and the coordinator may post again. The
  same goes for a learner that cannot be met, where weights come out of its memory.
* From the moment the engine is asked to take weights, anything that goes wrong (a refusal, a deadline, a
  canary outside its tolerance) means that nobody knows what the engine computes. The state is not ready for
  good, the engine is killed at once so that no request in flight can finish on such weights, and the process
  ends as retriable: Kubernetes starts it again with a clean engine, and the next manifest starts from there.
  So does an engine that hangs, whoever finds it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from typing import TYPE_CHECKING, Final

from headway_api.exits import JobError
from headway_api.logs import event
from headway_api.records import LoadFailure, PolicyVersion, WeightsManifest, WeightsState
from headway_api.store import Corrupt, NotFound, Store
from headway_rollout.engine import Engine, EngineRefused, NotJoined, WrongWeights
from headway_rollout.model import STORE_FAILURES
from headway_rollout.weights import canary
from headway_rollout.weights.checks import Unusable, check_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from headway_rollout.weights.loaders import Loader

log = logging.getLogger(__name__)

UNTOUCHED: Final = (Unusable, Corrupt, NotFound, NotJoined, *STORE_FAILURES)
"""Failures to get hold of usable files, or of the learner; the engine is as it was."""


class NotVerified(Exception):
    """The engine does not compute what the learner computed."""


UNVERIFIED: Final = (Unusable, Corrupt, NotVerified, WrongWeights)
"""Failures that say that these are not the weights the manifest describes."""


def kind_of(error: Exception) -> LoadFailure:
    """What the coordinator is told of a failure, in one word."""
    return "VerificationFailed" if isinstance(error, UNVERIFIED) else "UpdateFailed"


def said(error: Exception) -> str:
    """A failure in its own words."""
    return f"{type(error).__name__}: {error}"


class Keeper:
    """Takes manifests one at a time and answers with what is true afterwards.

    Invariant: `state.ready` implies that the canary of `state.version` passed on this very engine.
    """

    def __init__(self, engine: Engine, loader: Loader, store: Store, folder: Path) -> None:
        self._engine = engine
        self._loader = loader
        self._store = store
        self._folder = folder
        self._one_at_a_time = asyncio.Lock()
        self._state = WeightsState(version=None, ready=False)
        self.failed: asyncio.Future[JobError] = asyncio.get_running_loop().create_future()
        """Done when the engine is not to be trusted any more."""

    @property
    def state(self) -> WeightsState:
        """What the server holds at this moment."""
        return self._state

    async def take(self, manifest: WeightsManifest) -> WeightsState:
        """Make the engine hold `manifest`; asking again for what it holds costs nothing."""
        async with self._one_at_a_time:
            if self.failed.done() or (self._state.ready and self._state.version == manifest.version):
                return self._state
            before, started = self._state, time.monotonic()
            self._state = before.model_copy(update={"ready": False, "error": None, "reason": None})
            try:
                folder = await self._fetched(manifest)
            except UNTOUCHED as error:
                self._settle(before.model_copy(update={"error": said(error), "reason": kind_of(error)}))
            else:
                await self._load(manifest, folder, started)
            self._report(manifest)
            return self._state

    async def _fetched(self, manifest: WeightsManifest) -> Path:
        check_manifest(manifest, self._loader.kinds)
        folder = self._folder / str(manifest.version)
        if not self._loader.holds(manifest.version):
            await self._fetch(manifest, folder)
        return folder

    async def _fetch(self, manifest: WeightsManifest, folder: Path) -> None:
        # A folder of this name is what an earlier try left: the engine never saw it.
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        try:
            await self._loader.fetch(self._store, manifest, folder)
        except UNTOUCHED:
            # It may be as large as a model, and may never be asked for again.
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise

    async def _load(self, manifest: WeightsManifest, folder: Path, started: float) -> None:
        measured: float | None = None
        try:
            await self._loader.load(manifest, folder)
            measured = await self._measure(manifest)
            if not canary.agrees(measured, manifest.canary.tolerance):
                raise NotVerified(
                    f"log-probabilities differ from the learner's by {measured:.3g} on average, "
                    f"tolerance {manifest.canary.tolerance:.3g}"
                )
            await self._loader.tidy()
        except (EngineRefused, NotVerified) as error:
            self._fail(manifest.version, error, measured)
            return
        seconds = time.monotonic() - started
        self._settle(
            WeightsState(version=manifest.version, ready=True, canary_error=measured, seconds=seconds)
        )

    async def _measure(self, manifest: WeightsManifest) -> float:
        model, tokens = self._loader.model(manifest.version), manifest.canary.tokens
        at = canary.positions(len(manifest.canary.logprobs))
        found = await asyncio.gather(
            *(self._engine.next_logprob(model, tokens[: i + 1], tokens[i + 1]) for i in at)
        )
        return canary.difference([manifest.canary.logprobs[i] for i in at], found)

    def _fail(self, version: PolicyVersion, error: Exception, measured: float | None) -> None:
        finite = measured if measured is not None and measured != float("inf") else None
        state = WeightsState(
            version=None, ready=False, error=said(error), reason=kind_of(error), canary_error=finite
        )
        message = f"weights {version} were not verified: {said(error)}"
        self._end(state, JobError("WeightsNotVerified", message, permanent=False))

    def hung(self, why: str) -> None:
        """The engine computes nothing any more."""
        # Whatever it is told to take from here on, it does not take.
        state = WeightsState(version=None, ready=False, error=f"EngineHung: {why}", reason="UpdateFailed")
        self._end(state, JobError("EngineHung", why, permanent=False))

    def _end(self, state: WeightsState, error: JobError) -> None:
        self._settle(state)
        if not self.failed.done():
            self.failed.set_result(error)

    def _settle(self, state: WeightsState) -> None:
        """It is so from now on; but what ended the engine stands, whatever a load that it broke off says."""
        if not self.failed.done():
            self._state = state

    def _report(self, manifest: WeightsManifest) -> None:
        state = self._state
        event(
            log, "weights", logging.INFO if state.error is None else logging.ERROR,
            wanted=str(manifest.version), held=str(state.version), ready=state.ready, error=state.error,
            reason=state.reason, canary_error=state.canary_error, seconds=state.seconds,
        )  # fmt: skip
