"""A job that starts from another job's weights: two runs of the real learner over one store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
import torch
from safetensors.torch import load_file

from headway_api.config import JobConfig
from headway_api.records import FileDigest, WeightsManifest

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

LORA = {"rank": 4, "alpha": 8}
FULL = None
STEPS = 2


async def run(config: JobConfig, folder: Path, steps: int) -> None:
    served = rig.ScriptedCoordinator([rig.batch(n, groups=3) for n in range(1, steps + 1)])
    async with served.serving() as url, rig.learner(config, folder, url) as process:
        assert await process.exit(300) == 0, process.log.read_text()[-4000:]


async def earlier(folder: Path, model: Path, lora: dict[str, Any] | None) -> JobConfig:
    """A job that has trained."""
    config = rig.job(folder, model, lora=lora)
    await run(config, folder, STEPS)
    return config


def later(first: JobConfig, folder: Path, model: Path, lora: dict[str, Any] | None) -> JobConfig:
    """A second job over the first one's store.

    It has another seed, and starts from the first one's last weights.
    """
    content = rig.job(folder, model, lora=lora).model_dump(mode="json", by_alias=True, exclude_none=True)
    content |= {"name": "returns", "uid": "66666666-7777-8888-9999-000000000000"}
    content["spec"] |= {"output": {"uri": first.spec.output.uri}, "seed": 7}
    root = f"{first.spec.output.uri}/{first.namespace}/{first.name}/{first.uid}"
    content["spec"]["model"]["warmStart"] = {"uri": f"{root}/weights/{STEPS:06d}"}
    return JobConfig.model_validate(content)


def tensors(weights: WeightsManifest) -> list[FileDigest]:
    return [file for file in weights.files if file.name.endswith(".safetensors")]


@pytest.mark.parametrize("lora", [LORA, FULL], ids=["lora", "full"])
async def test_step_0_equals_the_other_jobs_last_and_is_fetched_once(
    tmp_path: Path, model: Path, left: Callable[..., Any], lora: dict[str, Any] | None
) -> None:
    first = await earlier(tmp_path / "first", model, lora)
    untrained, last = (left(first).report(step).weights for step in (0, STEPS))
    assert tensors(last) != tensors(untrained)

    second = later(first, tmp_path / "second", model, lora)
    await run(second, tmp_path / "second", steps=1)
    start, trained = (left(second).report(step).weights for step in (0, 1))
    assert tensors(start) == tensors(last)
    assert start.canary.logprobs == last.canary.logprobs
    assert tensors(trained) != tensors(last)

    shutil.rmtree(left(first).weights(STEPS))
    shutil.rmtree(tmp_path / "second" / "cache")
    await run(second, tmp_path / "second", steps=2)
    assert left(second).latest == 2


async def test_an_adapter_is_merged_into_full_weights_that_train(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    first = await earlier(tmp_path / "first", model, LORA)
    second = later(first, tmp_path / "second", model, FULL)
    await run(second, tmp_path / "second", steps=0)
    last, start = left(first).report(STEPS).weights, left(second).report(0).weights
    assert start.canary.logprobs == pytest.approx(last.canary.logprobs, abs=1e-4)
    merged, base = (load_file(at / "model.safetensors") for at in (left(second).weights(0), model))
    assert merged.keys() == base.keys()
    assert not all(torch.equal(merged[name], base[name]) for name in base)
