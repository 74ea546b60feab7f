"""Turns a served model into vLLM's command line and environment: a pure function.

This module does not look at the machine; `Host` describes it. Flags that users add in
`spec.rollout.engine.extraArgs`, or in `extraArgs` of a judge, come last, so they override ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from headway_api.model_names import BASE_MODEL
from headway_api.quantity import amount
from headway_rollout.auth_middleware import ENV_DIGEST, digest
from headway_rollout.inherited import inherited

if TYPE_CHECKING:
    from pathlib import Path

    from headway_api.config import ServedModel

KEEP_ADAPTERS: Final = 3
"""Number of versions of the trained policy that stay loaded: the newest, and older ones from which turns in
flight may still sample."""

TRANSFER_BACKEND: Final = "headway-folder"
"""Name of the weight-transfer engine in `weight_transfer.py`."""

FULL_WORKER: Final = "headway_rollout.weight_transfer.WorkerExtension"
LORA_WORKER: Final = "headway_rollout.cpu_lora.LoraWorker"
PLAIN_WORKER: Final = "headway_rollout.worker.Worker"
"""Classes that vLLM's workers import before they load the model: for full weights, adapters or neither."""

AUTH_MIDDLEWARE: Final = "headway_rollout.auth_middleware.AuthMiddleware"
"""Middleware that vLLM's front process runs before all its routes."""

LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256)
"""Ranks for which vLLM can reserve memory. An adapter of another rank takes the next larger of these."""

MEBIBYTE: Final = 1 << 20
SMALLEST_CACHE: Final = 64 * MEBIBYTE
"""Minimum bytes of the KV cache on a CPU."""
LARGEST_CACHE: Final = 512 * MEBIBYTE
"""Maximum bytes of the KV cache on a CPU, unless a single sequence of full length needs more."""

BYTES: Final = {"float32": 4, "bfloat16": 2}
"""Bytes of a number, by its format."""


@dataclass(frozen=True)
class Host:
    """The properties of the machine on which vLLM's command line depends."""

    accelerator: bool
    """Whether there is a GPU; otherwise vLLM runs on the CPU."""
    cores: int
    cache: Path
    """Writable folder for caches of the heavy libraries."""
    address: str
    port: int
    python: str
    """Interpreter to run vLLM with."""


@dataclass(frozen=True)
class Launch:
    """How to start vLLM."""

    argv: tuple[str, ...]
    env: dict[str, str]


def launch(
    model: ServedModel,
    folder: Path,
    config: Mapping[str, Any],
    host: Host,
    parent: Mapping[str, str],
    key: str,
) -> Launch:
    """How to start vLLM for `model` on `host`.

    Args:
        folder: folder of the base model.
        config: content of its config.json.
        parent: environment of this process.
        key: the key that every request to vLLM must send.
    """
    argv = [host.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(folder), "--served-model-name", BASE_MODEL]
    argv += ["--host", host.address, "--port", str(host.port)]
    argv += ["--dtype", model.dtype, "--seed", str(model.seed)]
    argv += ["--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--enable-prompt-tokens-details"]
    argv += ["--middleware", AUTH_MIDDLEWARE, "--uvicorn-log-level", "warning"]
    if model.context_length is not None:
        argv += ["--max-model-len", str(model.context_length)]
    argv += _weights(model)
    tensor_parallel = model.rollout.engine.tensor_parallel_size
    if tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(tensor_parallel)]
    if not host.accelerator:
        argv += _cpu(model, config)
    argv += model.rollout.engine.extra_args
    return Launch(argv=tuple(argv), env=environment(model, host, parent, key))


def _weights(model: ServedModel) -> list[str]:
    """Flags for weights that are loaded later: adapters, all weights of the model, or none."""
    if model.lora_rank is not None:
        return _lora(model.lora_rank, max_adapters(model))
    return _full() if model.updates else ["--worker-extension-cls", PLAIN_WORKER]


def max_adapters(model: ServedModel) -> int:
    """Maximum adapters that requests name at the same time: one for each slot, and older versions of the
    trained policy. Turns in flight may still sample from those versions."""
    return model.adapters + (KEEP_ADAPTERS - 1 if model.updates else 0)


def _lora(rank: int, adapters: int) -> list[str]:
    place = next((offered for offered in LORA_RANKS if offered >= rank), rank)
    return [
        "--enable-lora",
        "--max-lora-rank", str(place),
        "--max-loras", str(adapters),
        # vLLM's worker keeps unloaded adapters until it needs their place. Twice the loaded number is enough.
        "--max-cpu-loras", str(2 * adapters),
        "--worker-extension-cls", LORA_WORKER,
    ]  # fmt: skip


def _full() -> list[str]:
    return [
        "--weight-transfer-config", json.dumps({"backend": TRANSFER_BACKEND}),
        "--worker-extension-cls", FULL_WORKER,
    ]  # fmt: skip


def _cpu(model: ServedModel, config: Mapping[str, Any]) -> list[str]:
    argv = ["--enforce-eager", "--kv-cache-memory-bytes", str(cache_bytes(model, config))]
    # Only whole blocks are cached. The default of 128 tokens would match nothing in short conversations.
    argv += ["--block-size", "32"]
    # With chunked prefill, vLLM's CPU engine dies on a prompt in several chunks if the request has a seed.
    # All requests of Headway have one. vLLM would rewind a random generator that has no offset. With chunked
    # prefill, it also dies when it computes turns again after full weights were loaded.
    argv += ["--no-enable-chunked-prefill"]
    if model.rollout.engine.tensor_parallel_size == 1:
        argv += ["--distributed-executor-backend", "uni"]
    return argv


def cache_bytes(model: ServedModel, config: Mapping[str, Any]) -> int:
    """Bytes of KV cache on a CPU: room for every episode in flight at full length, within bounds.

    Args:
        config: content of the base model's config.json.
    """
    heads = int(config["num_attention_heads"])
    head_size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    token = 2 * int(config["num_hidden_layers"]) * kv_heads * head_size * BYTES[model.dtype]
    context = model.context_length or int(config["max_position_embeddings"])
    wanted = token * context * math.ceil(model.rollout.max_concurrency / model.rollout.replicas)
    one_block_more = token * (context + 64)
    return max(min(max(wanted, SMALLEST_CACHE), LARGEST_CACHE), one_block_more)


def environment(model: ServedModel, host: Host, parent: Mapping[str, str], key: str) -> dict[str, str]:
    """Environment of the engine: the variables of `parent` that it may inherit, and vLLM's own switches.

    It contains only the digest of `key`, not the key itself.
    """
    env = inherited(parent) | {
        "HOME": str(host.cache),
        "XDG_CACHE_HOME": str(host.cache / "xdg"),
        # An image may contain a warm cache of vLLM's facts about each model class. Without it, vLLM inspects
        # the class again, which takes seconds.
        "VLLM_CACHE_ROOT": parent.get("VLLM_CACHE_ROOT") or str(host.cache / "vllm"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        # A process that a signal kills prints its Python calls, which `deaths.py` reads.
        "PYTHONFAULTHANDLER": "1",
        # Version 1 of vLLM's model runner is the only one that works on a CPU, where our tests run.
        "VLLM_USE_V2_MODEL_RUNNER": parent.get("VLLM_USE_V2_MODEL_RUNNER") or "0",
        ENV_DIGEST: digest(key),
        # Adds the routes that pause, resume and update weights. Like every route, they need the key.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    if not host.accelerator:
        env |= {
            "OMP_NUM_THREADS": parent.get("OMP_NUM_THREADS") or str(threads(model, host)),
            # If vLLM bound its threads to cores, every server of a node would run on core 0.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Otherwise the first request for log-probabilities compiles a kernel, or fails because there is
            # no compiler.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return env


def threads(model: ServedModel, host: Host) -> int:
    """Number of threads for CPU kernels: the container's CPU limit, and at most the machine's cores."""
    limits = model.rollout.resources.limits if model.rollout.resources is not None else None
    quantity = (limits or {}).get("cpu")
    if quantity is None:
        return host.cores
    return max(1, int(min(amount(quantity), Decimal(host.cores))))
