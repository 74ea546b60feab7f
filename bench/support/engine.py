"""A rollout server (vLLM and the weight agent) for a benchmark, with weights in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollout_server import RolloutServer, publish_adapter, publish_full, version

from bench.support.model import Size, write_model
from headway_api.records import WeightsManifest

START_SECONDS = 300
LORA: dict[str, Any] = {"rank": 8, "alpha": 16}
EFFECT = 0.02
"""Standard deviation of an adapter's weights: enough for the canary to tell two apart."""


class Server:
    """The server, and weights for it."""

    def __init__(self, process: RolloutServer, base: Path, store: Path, *, lora: bool) -> None:
        self.process = process
        self.base = base
        self._store = store
        self._lora = lora
        self._made: dict[int, WeightsManifest] = {}

    def weights(self, step: int) -> WeightsManifest:
        """Weights of a step; the same files for all adapters, under versions of their own."""
        if step not in self._made:
            self._made[step] = self._publish(step)
        return self._made[step]

    def _publish(self, step: int) -> WeightsManifest:
        if not self._lora:
            return publish_full(self._store, version(step), seed=0, tied=False)
        if 0 in self._made:
            return self._made[0].model_copy(update={"version": version(step)})
        return publish_adapter(self._store, self.base, version(step), seed=1, scale=EFFECT)


@contextmanager
def running(
    folder: Path, size: Size, *, context: int, concurrency: int, lora: bool = True
) -> Iterator[Server]:
    """A server over a model of `size`, ready for weights."""
    base = write_model(folder / "base", size)
    how = {"lora": LORA} if lora else {"full": {}}
    spec: dict[str, Any] = {
        "model": {"contextLength": context} | how,
        "rollout": {"maxConcurrency": concurrency, "sampling": {"maxTokens": 64}},
    }
    with RolloutServer(folder / "server", base, **spec) as process:
        process.wait_ready(START_SECONDS)
        yield Server(process, base, folder / "published", lora=lora)
