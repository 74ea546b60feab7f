"""A policy that does not move: whatever is trained, every ratio stays 1 at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
import torch
from safetensors.torch import load_file

from headway_api.records import Batch, TrainingRow
from headway_api.spec.algorithm import LOSSES, AlgorithmSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STEPS = 4
NO_RATE = 1e-30
"""A learning rate of 0 is refused at apply. An update at this rate rounds to nothing when it is added to a
float32 weight, unless the weight is 0."""
CLOSE = 1e-5


def as_sampled(model: Any, row: TrainingRow) -> TrainingRow:
    """The row with the log-probabilities that the model itself gives to its action tokens."""
    with torch.no_grad():
        log_LV = model(torch.tensor([row.tokens])).logits[0].log_softmax(-1)
    logprobs = [
        float(log_LV[t - 1, token]) if trained else 0.0
        for t, (token, trained) in enumerate(zip(row.tokens, row.mask, strict=True))
    ]
    return row.model_copy(update={"logprobs": logprobs})


def sampled(model: Any, batch: Batch) -> Batch:
    groups = [
        group.model_copy(
            update={
                "episodes": [
                    episode.model_copy(update={"rows": [as_sampled(model, row) for row in episode.rows]})
                    for episode in group.episodes
                ]
            }
        )
        for group in batch.groups
    ]
    return batch.model_copy(update={"groups": groups})


LORA = {"rank": 4, "alpha": 8}
LONG = pytest.mark.long
DEFAULT = AlgorithmSpec().loss


@pytest.mark.parametrize(
    ("algorithm", "training"),
    [
        ({}, {}),
        pytest.param({"correction": "tis"}, {"lora": LORA, "processes": 2}, marks=LONG),
        *(pytest.param({"loss": name}, {}, marks=LONG) for name in LOSSES if name != DEFAULT),
        *(
            pytest.param({"correction": name}, {"processes": 2, "zero_stage": stage}, marks=LONG)
            for name, stage in (("none", 3), ("decoupled", 1), ("sequence_mask", 2))
        ),
    ],
    ids=str,
)
async def test_without_a_learning_rate_every_ratio_stays_one(
    tmp_path: Path,
    model: Path,
    left: Callable[..., Any],
    algorithm: dict[str, Any],
    training: dict[str, Any],
) -> None:
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    batches = [sampled(policy, rig.batch(n, groups=3)) for n in range(1, STEPS + 1)]
    config = rig.job(
        tmp_path,
        model,
        algorithm={"updatesPerBatch": 2, **algorithm},
        optimizer={"learningRate": NO_RATE},
        **training,
    )
    served = rig.ScriptedCoordinator(batches)
    async with served.serving() as url, rig.learner(config, tmp_path, url) as process:
        assert await process.exit(300) == 0, process.log.read_text()[-4000:]
    reports = left(config).reports()
    for report in reports[1:]:
        assert report.metrics["training/updates"] == 2
        assert report.metrics["training/grad_norm"] > 0
        assert report.metrics["training/ratio_max"] == pytest.approx(1.0, abs=CLOSE)
        assert report.metrics["training/ratio_min"] == pytest.approx(1.0, abs=CLOSE)
        assert report.metrics["training/correction_weight_mean"] == pytest.approx(1.0, abs=CLOSE)
        assert report.metrics["training/logprob_gap_max"] == pytest.approx(0.0, abs=CLOSE)
    name = "adapter_model.safetensors" if "lora" in training else "model.safetensors"
    first, last = (load_file(left(config).weights(step) / name) for step in (0, STEPS))
    assert max(float((last[name] - first[name]).abs().max()) for name in first) < 1e-25
