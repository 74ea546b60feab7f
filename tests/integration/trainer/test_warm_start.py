"""A job that starts from another's weights: the real learner, twice, over one store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
import torch
from safetensors.torch import load_file

from headway_api.config import JobConfig
from headway_api.exits import RETRIABLE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LORA = {"rank": 4, "alpha": 8}
STEPS = 2


async def run(config: JobConfig, folder: Path, steps: int = STEPS) -> rig.ScriptedCoordinator:
    served = rig.ScriptedCoordinator([rig.batch(n, groups=3) for n in range(1, steps + 1)])
    async with served.serving() as url, rig.learner(config, folder, url) as process:
        assert await process.exit(300) == 0, process.log.read_text()[-4000:]
    return served


def after(first: JobConfig, folder: Path, model: Path, uri: str, lora: dict[str, Any] | None) -> JobConfig:
    """A second job over the first one's store, with another seed."""
    content = rig.job(folder, model, lora=lora).model_dump(mode="json", by_alias=True, exclude_none=True)
    content |= {"name": "returns", "uid": "66666666-7777-8888-9999-000000000000"}
    content["spec"] |= {"output": {"uri": first.spec.output.uri}, "seed": 7}
    content["spec"]["model"]["warmStart"] = {"uri": uri}
    return JobConfig.model_validate(content)


@pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "full"])
async def test_step_0_is_the_other_jobs_last_bit_for_bit(
    tmp_path: Path, model: Path, left: Callable[..., Any], lora: dict[str, Any] | None
) -> None:
    first = rig.job(tmp_path / "first", model, lora=lora)
    await run(first, tmp_path / "first")
    last = left(first).report(STEPS).weights
    assert last.files != left(first).report(0).weights.files

    second = after(first, tmp_path / "second", model, last.uri, lora)
    await run(second, tmp_path / "second")
    start, trained = (left(second).report(step).weights for step in (0, STEPS))
    tensors = {file.name: file for file in last.files if file.name.endswith(".safetensors")}
    assert {file.name: file for file in start.files if file.name in tensors} == tensors
    assert start.canary.logprobs == last.canary.logprobs
    assert {file.name: file for file in trained.files if file.name in tensors} != tensors


async def test_an_adapter_is_merged_into_weights_that_all_train(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    first = rig.job(tmp_path / "first", model, lora=LORA)
    await run(first, tmp_path / "first")
    last = left(first).report(STEPS).weights
    second = after(first, tmp_path / "second", model, last.uri, None)
    await run(second, tmp_path / "second", steps=0)
    start = left(second).report(0).weights
    assert start.canary.logprobs == pytest.approx(last.canary.logprobs, abs=1e-4)
    merged = load_file(left(second).weights(0) / "model.safetensors")
    base = load_file(model / "model.safetensors")
    assert merged.keys() == base.keys()
    assert not all(torch.equal(merged[name], base[name]) for name in base)


async def test_a_restart_does_not_look_at_them_again_and_a_new_job_finds_them_damaged(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    first = rig.job(tmp_path / "first", model, lora=LORA)
    await run(first, tmp_path / "first")
    last = left(first).report(STEPS).weights
    second = after(first, tmp_path / "second", model, last.uri, LORA)
    await run(second, tmp_path / "second", steps=1)
    before = left(second).report(1).weights

    (left(first).weights(STEPS) / "adapter_model.safetensors").write_bytes(b"damaged")
    await run(second, tmp_path / "second")
    assert left(second).report(1).weights == before

    third = after(first, tmp_path / "third", model, last.uri, LORA)
    third = third.model_copy(update={"name": "refits"})
    async with rig.learner(third, tmp_path / "third", "http://127.0.0.1:1") as process:
        assert await process.exit(200) == RETRIABLE
    said = process.log.read_text()
    assert "WarmStartUnusable: spec.model.warmStart: " in said
    assert "adapter_model.safetensors is not the file that the job wrote" in said
