"""Runs a rollout server (vLLM and the weight agent) for a benchmark, and makes weights for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from rollout_server import CANARY_TOKENS, TOLERANCE, RolloutServer, publish_adapter, score, version

from bench.support.model import Size, write_model
from headway_api.records import Canary, WeightsManifest
from headway_api.store import digest
from headway_coordinator.engines.router import Endpoint

START_SECONDS = 300
LORA: dict[str, Any] = {"rank": 8, "alpha": 16}
EFFECT = 0.02
"""Standard deviation of the random weights of an adapter."""


class Server:
    """The running server, and weights for it."""

    def __init__(self, process: RolloutServer, base: Path, store: Path, *, lora: bool) -> None:
        self.process = process
        self.base = base
        self._store = store
        self._lora = lora

    def weights(self, step: int, incarnation: int = 0) -> WeightsManifest:
        """The manifest of a version of the weights. All versions have the same files."""
        return self._published.model_copy(update={"version": version(step, incarnation)})

    async def discover(self) -> set[Endpoint]:
        """The endpoints to use, which are only this server."""
        return {Endpoint(self.process.url, self.process.agent_url)}

    @cached_property
    def _published(self) -> WeightsManifest:
        if self._lora:
            return publish_adapter(self._store, self.base, version(0), seed=1, scale=EFFECT)
        return _whole(self.base)


def _whole(base: Path) -> WeightsManifest:
    """The manifest of the base model as full weights."""
    import torch
    from transformers import AutoModelForCausalLM

    logprobs = score(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), CANARY_TOKENS)
    return WeightsManifest(
        version=version(0),
        kind="full",
        uri=f"file://{base}",
        files=[digest(path) for path in sorted(base.glob("*")) if path.suffix in (".json", ".safetensors")],
        canary=Canary(tokens=CANARY_TOKENS, logprobs=logprobs, tolerance=TOLERANCE),
    )


@contextmanager
def running(
    folder: Path, size: Size, *, context: int, concurrency: int, lora: bool = True, validates: bool = False
) -> Iterator[Server]:
    """Run a server with a model of `size` during the block, and wait until it can load weights.

    Args:
        validates: whether the server's job has held-out rows.
    """
    base = write_model(folder / "base", size)
    how: dict[str, Any] = {"lora": LORA} if lora else {"full": {}}
    spec: dict[str, Any] = {
        "model": {"contextLength": context} | how,
        "rollout": {"maxConcurrency": concurrency, "sampling": {"maxTokens": 64}},
    }
    if validates:
        uris = {name: f"file://{folder}/{name}.jsonl" for name in ("train", "validation")}
        spec["data"] = {name: {"uri": uri} for name, uri in uris.items()}
    with RolloutServer(folder / "server", base, **spec) as process:
        process.wait_ready(START_SECONDS)
        yield Server(process, base, folder / "published", lora=lora)
