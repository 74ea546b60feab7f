from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from role_keys import TO_ROLLOUT as KEY
from rollout_server import job_config

from headway_api.config import ServedModel
from headway_api.field_types import QUANTITY_PATTERN
from headway_api.model_names import adapter_name, is_slot, salt_of
from headway_api.records import PolicyVersion
from headway_rollout.auth_middleware import ENV_DIGEST
from headway_rollout.launch import (
    FULL_WORKER,
    KEEP_ADAPTERS,
    LARGEST_CACHE,
    LORA_WORKER,
    PLAIN_WORKER,
    SMALLEST_CACHE,
    TRANSFER_BACKEND,
    Host,
    amount,
    cache_bytes,
    launch,
    max_adapters,
    threads,
)

MODEL = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_size": 128,
    "max_position_embeddings": 4096,
}
CPU = Host(accelerator=False, cores=4, cache=Path("/cache"), address="0.0.0.0", port=8000, python="python")
GPU = dataclasses.replace(CPU, accelerator=True)


def served(**spec: Any) -> ServedModel:
    return job_config(Path("/nowhere"), "s3://bucket/model", **spec).served()


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flags with their values. The last value of a repeated flag counts, as in vLLM."""
    words = list(argv[3:])
    found = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            value = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else ""
            found[word] = value
    return found


def started(host: Host = CPU, parent: dict[str, str] | None = None, **spec: Any) -> Any:
    return launch(served(**spec), Path("/cache/model"), MODEL, host, parent or {}, KEY)


def test_adapter_slots_cover_every_version_that_may_be_in_flight() -> None:
    found = flags(started(model={"lora": {"rank": 16, "alpha": 32}}).argv)
    assert "--enable-lora" in found
    assert found["--max-lora-rank"] == "16"
    assert int(found["--max-cpu-loras"]) > int(found["--max-loras"]) == KEEP_ADAPTERS
    assert "--weight-transfer-config" not in found


LORA = {"model": {"lora": {"rank": 16, "alpha": 32}}}
HELD_OUT = {"data": {"train": {"uri": "s3://b/train.jsonl"}, "validation": {"uri": "s3://b/held.jsonl"}}}


def test_validation_beside_training_has_its_own_adapter_slot() -> None:
    alone, beside = served(**LORA), served(**LORA, **HELD_OUT)
    assert (alone.adapters, beside.adapters) == (1, 2)
    assert max_adapters(beside) == max_adapters(alone) + 1
    assert served(model={"full": {}}, **HELD_OUT).adapters == 1, "no engine holds all weights twice"


@pytest.mark.parametrize("model", [LORA, {"model": {"full": {}}}])
def test_dedicated_validation_servers_need_no_extra_adapter_slot(model: dict[str, Any]) -> None:
    job = job_config(
        Path("/nowhere"), "s3://bucket/model", evaluation={"servers": "Dedicated"}, **model, **HELD_OUT
    )
    assert job.validates_beside
    assert job.served().adapters == 1
    assert job.validation_host == "job-rollout-validation.tests.svc"
    assert job.rollout_host == "job-rollout.tests.svc"


def an_evaluation(rank: int | None, adapters: int) -> dict[str, str]:
    """Flags of an evaluation's server, whose candidates' weights never change."""
    changed = {"lora_rank": rank, "adapters": adapters, "updates": False}
    model = served(**LORA).model_copy(update=changed)
    return flags(launch(model, Path("/cache/model"), MODEL, CPU, {}, KEY).argv)


def test_each_candidate_with_an_adapter_has_one_place() -> None:
    found = an_evaluation(rank=12, adapters=5)
    assert (found["--max-lora-rank"], found["--max-loras"]) == ("16", "5")
    assert int(found["--max-cpu-loras"]) >= 5
    assert "--weight-transfer-config" not in found


def test_a_fixed_base_model_needs_no_adapters_or_transfer() -> None:
    assert not {"--enable-lora", "--weight-transfer-config"} & an_evaluation(None, 1).keys()


@pytest.mark.parametrize(("rank", "slot"), [(1, 1), (4, 8), (8, 8), (9, 16), (32, 32), (33, 64), (256, 256)])
def test_a_rank_that_vllm_does_not_offer_takes_the_next_one(rank: int, slot: int) -> None:
    assert flags(started(model={"lora": {"rank": rank, "alpha": 8}}).argv)["--max-lora-rank"] == str(slot)


def test_full_training_uses_the_folder_engine_and_no_adapters() -> None:
    found = flags(started(model={"full": {}}).argv)
    assert json.loads(found["--weight-transfer-config"]) == {"backend": TRANSFER_BACKEND}
    assert "--enable-lora" not in found


def test_the_spec_decides_dtype_context_seed_and_parallelism() -> None:
    found = flags(
        started(
            GPU,
            model={"dtype": "bfloat16", "contextLength": 2048},
            seed=7,
            rollout={"sampling": {"maxTokens": 16}, "engine": {"tensorParallelSize": 4}},
        ).argv
    )
    assert found["--dtype"] == "bfloat16"
    assert found["--max-model-len"] == "2048"
    assert found["--seed"] == "7"
    assert found["--tensor-parallel-size"] == "4"


def test_log_probabilities_are_at_the_sampling_temperature() -> None:
    assert flags(started().argv)["--logprobs-mode"] == "processed_logprobs"


def test_settings_for_a_cpu_are_not_given_to_a_gpu() -> None:
    cpu, gpu = started(CPU), started(GPU)
    only_cpu = {
        "--enforce-eager",
        "--kv-cache-memory-bytes",
        "--block-size",
        "--no-enable-chunked-prefill",
        "--distributed-executor-backend",
    }
    assert flags(cpu.argv).keys() - flags(gpu.argv).keys() == only_cpu
    assert cpu.env["TORCHDYNAMO_DISABLE"] == "1"
    assert cpu.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert not {key for key in gpu.env if "CPU" in key or key == "TORCHDYNAMO_DISABLE"}


def test_the_users_arguments_come_last_and_so_win() -> None:
    rollout = {
        "sampling": {"maxTokens": 16},
        "engine": {"extraArgs": ["--max-num-seqs", "8", "--block-size", "64"]},
    }
    argv = started(rollout=rollout).argv
    assert argv[-4:] == ("--max-num-seqs", "8", "--block-size", "64")
    assert flags(argv)["--block-size"] == "64"


def test_every_worker_is_prepared_before_its_first_step() -> None:
    full, lora = (flags(started(model=model).argv) for model in ({"full": {}}, {"lora": {"alpha": 8}}))
    assert full["--worker-extension-cls"] == FULL_WORKER
    assert lora["--worker-extension-cls"] == LORA_WORKER
    assert an_evaluation(None, 1)["--worker-extension-cls"] == PLAIN_WORKER
    assert started().env["PYTHONFAULTHANDLER"] == "1"


def test_model_runner_v1_is_used_unless_the_user_overrides_it() -> None:
    assert started(GPU).env["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert started(GPU, {"VLLM_USE_V2_MODEL_RUNNER": "1"}).env["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_the_engine_gets_no_secret_of_the_server() -> None:
    secrets = ("AWS_SECRET_ACCESS_KEY", "HEADWAY_KEYS_DIR", "HF_TOKEN", "KUBERNETES_PORT", "VLLM_API_KEY")
    env = started(parent=dict.fromkeys(secrets, "x") | {"PATH": "/bin"}).env
    assert env["PATH"] == "/bin"
    assert not {*secrets} & env.keys()


KEPT = (
    *(
        "PATH",
        "HF_HOME",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "NCCL_SOCKET_IFNAME",
        "LD_LIBRARY_PATH",
    ),
    *(
        "PYTHONPATH",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_CUDA_ARCH_LIST",
        "VLLM_LOGGING_LEVEL",
        "LC_ALL",
        "LANG",
    ),
    *("TMPDIR", "MKL_NUM_THREADS", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "HIP_VISIBLE_DEVICES"),
    *("TOKENIZERS_PARALLELISM", "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD"),
)


def test_the_engine_gets_no_other_keys_of_the_stores_secret() -> None:
    """A Secret may have any keys beside those of the store."""
    others = (
        "DATABASE_URL",
        "STRIPE_KEY",
        "GITHUB_TOKEN",
        "S3_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "password",
    )
    tokens = ("HF_TOKEN_PATH", "VLLM_OTHER_TOKEN", "RAY_AUTH_TOKEN")
    env = started(GPU, dict.fromkeys((*KEPT, *others, *tokens), "x")).env
    assert not {*others, *tokens} & env.keys()
    assert {name for name in KEPT if env.get(name) == "x"} == {*KEPT}


def test_the_engine_has_the_digest_of_the_key_and_not_the_key() -> None:
    how = started()
    assert flags(how.argv)["--middleware"] == "headway_rollout.auth_middleware.AuthMiddleware"
    assert how.env[ENV_DIGEST] == hashlib.sha256(KEY.encode()).hexdigest()
    assert KEY not in " ".join([*how.argv, *how.env.values()])


@pytest.mark.parametrize(
    ("limit", "parent", "expected"),
    [
        ("2", {}, "2"),
        ("500m", {}, "1"),
        ("3500m", {}, "3"),
        ("1500000u", {}, "1"),
        ("2500000000n", {}, "2"),
        ("3e0", {}, "3"),
        ("30E-1", {}, "3"),
        ("2k", {}, "4"),
        ("1Ki", {}, "4"),
        ("1e999999", {}, "4"),
        (".5", {}, "1"),
        (None, {}, "4"),
    ],
)
def test_threads_follow_the_containers_limit(
    limit: str | None, parent: dict[str, str], expected: str
) -> None:
    rollout: dict[str, Any] = {"sampling": {"maxTokens": 16}}
    if limit is not None:
        rollout["resources"] = {"limits": {"cpu": limit}}
    assert started(parent=parent, rollout=rollout).env["OMP_NUM_THREADS"] == expected
    assert threads(served(rollout=rollout), CPU) == int(expected)


def test_threads_set_from_outside_stay() -> None:
    assert started(parent={"OMP_NUM_THREADS": "1"}).env["OMP_NUM_THREADS"] == "1"


@given(
    context=st.integers(256, 1 << 20),
    concurrency=st.integers(1, 4096),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_the_cache_holds_one_sequence_and_stays_within_bounds(
    context: int, concurrency: int, dtype: str
) -> None:
    rollout = {"sampling": {"maxTokens": 16}, "maxConcurrency": concurrency}
    found = cache_bytes(served(model={"contextLength": context, "dtype": dtype}, rollout=rollout), MODEL)
    token = 2 * 2 * 2 * 32 * (4 if dtype == "float32" else 2)
    assert found >= max(SMALLEST_CACHE, token * context)
    assert found <= max(LARGEST_CACHE, token * (context + 64))


@given(st.integers(0, 99), st.integers(0, 10**6))
def test_every_version_has_its_own_name(incarnation: int, step: int) -> None:
    name = adapter_name(PolicyVersion(incarnation=incarnation, step=step))
    assert re.fullmatch(rf"policy-{incarnation}\.{step}", name)


SLOTS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
VERSIONS = st.builds(PolicyVersion, incarnation=st.integers(0, 99), step=st.integers(0, 999))


@given(SLOTS, SLOTS, VERSIONS, VERSIONS)
def test_versions_of_two_slots_share_no_name_or_cached_prefix(
    one: str, other: str, first: PolicyVersion, second: PolicyVersion
) -> None:
    assert is_slot(one)
    alike = (one, first) == (other, second)
    assert (adapter_name(first, one) == adapter_name(second, other)) == alike
    assert (salt_of(first, one) == salt_of(second, other)) == alike
    assert len(salt_of(first, one)) <= 128
    assert not set(salt_of(first, one)) & set("@/\\\0"), "vLLM refuses those"


def test_the_transfer_engine_is_registered_by_the_requested_name() -> None:
    source = Path(__file__).parents[3] / "rollout/headway_rollout/weight_transfer.py"
    assert f'BACKEND = "{TRANSFER_BACKEND}"' in source.read_text()


@given(st.from_regex(QUANTITY_PATTERN, fullmatch=True).filter(lambda text: len(text) <= 32))
def test_every_quantity_that_the_schema_takes_is_read(text: str) -> None:
    assert amount(text) >= 0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1Ki", "1024"),
        ("1k", "1000"),
        ("1E", "1e18"),
        ("1E3", "1000"),
        ("1500m", "1.5"),
        ("5.", "5"),
        ("2Mi", "2097152"),
    ],
)
def test_a_quantity_is_parsed_as_kubernetes_parses_it(text: str, same: str) -> None:
    assert amount(text) == amount(same)


@pytest.mark.parametrize("text", ["", "a", "1x", "1KiB", "1 k", "--1", "1e"])
def test_an_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        amount(text)
