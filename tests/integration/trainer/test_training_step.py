"""DeepSpeed's step compared with plain PyTorch's: stages, ranks, adapters, optimizer, export."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import learner_rig as rig
import numpy as np
import pytest
import step_variants
import torch
from safetensors.torch import load_file
from step_variants import LORA, OPTIMIZER, STEPS
from torch import Tensor

from headway_api.records import Batch, Canary, StepReport, TrainingRow
from headway_trainer import model as models

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RATE, BETAS, EPSILON = (OPTIMIZER[name] for name in ("learningRate", "betas", "eps"))
DECAY, CLIP, WARMUP = (OPTIMIZER[name] for name in ("weightDecay", "gradientClip", "warmupSteps"))
SMALL = 40
"""Tokens of a micro-batch that holds a row or two."""
FEW = 4 * rig.VOCABULARY
"""Logits of a chunk of four positions."""
FULL: dict[str, dict[str, Any]] = {
    "stage0": {"zeroStage": 0},
    "stage0-small": {"zeroStage": 0, "tokens": SMALL},
    "stage1": {"zeroStage": 1, "chunk": FEW},
    "stage2-small": {"zeroStage": 2, "tokens": SMALL},
    "stage2-padded": {"zeroStage": 2, "packed": False},
    "stage2-padded-small": {"zeroStage": 2, "packed": False, "tokens": 60, "chunk": FEW},
    "stage2-recomputed": {"zeroStage": 2, "checkpointing": True, "tokens": 100},
    "stage3-small": {"zeroStage": 3, "tokens": SMALL, "chunk": FEW},
    "stage3-recomputed": {"zeroStage": 3, "checkpointing": True, "chunk": FEW},
    "stage1-offload": {"zeroStage": 1, "offload": "cpu"},
    "stage2-offload": {"zeroStage": 2, "offload": "cpu", "tokens": SMALL},
    "stage3-offload": {"zeroStage": 3, "offload": "cpu"},
}
ADAPTER: dict[str, dict[str, Any]] = {
    "lora": {"zeroStage": 1, "lora": True},
    "lora-stage2-padded-small": {"zeroStage": 2, "lora": True, "packed": False, "tokens": 60},
    "lora-stage3-recomputed": {
        "zeroStage": 3,
        "lora": True,
        "tokens": 50,
        "chunk": FEW,
        "checkpointing": True,
    },
}
PENALTY = {"kl": {"coefficient": 0.1}}
DIVERGENCE: dict[str, dict[str, Any]] = {
    "divergence": {"zeroStage": 1, "algorithm": PENALTY},
    "divergence-stage3-small": {"zeroStage": 3, "algorithm": PENALTY, "tokens": SMALL, "chunk": FEW},
}
"""Variants with a penalty against the frozen copy, which is sharded and chunked as the policy is."""
LARGE = {"kl": {"coefficient": 10.0}}
"""A large coefficient, because an adapter moves little in three steps."""
TERMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lora-divergence": ({"lora": True, "algorithm": LARGE}, {"lora": True, "divergence": 10.0}),
    "old": ({"algorithm": {"correction": "decoupled"}, "updates": 2}, {"updates": 2, "decoupled": True}),
    "entropy": ({"algorithm": {"entropy": {"coefficient": 1.0}}}, {"entropy": 1.0}),
}
"""Terms that need their own pass or gradient: the variant, and the same in plain PyTorch."""
GATHERED = {
    name: {"zeroStage": 3, "tokens": SMALL, "chunk": FEW, **settings} for name, (settings, _) in TERMS.items()
}
SHORT = ADAPTER | DIVERGENCE | {"stage1": FULL["stage1"]}
"""Variants that `make test` runs."""
Trained = tuple[dict[str, Tensor], list[float], list[float]]
"""Final weights, loss and gradient norm of each optimizer step."""
RANKS = (1, pytest.param(2, marks=pytest.mark.long))
"""Only `.ci/run` runs the tests with two processes."""


def batches() -> list[Batch]:
    return [rig.batch(n, groups=3, seed=5) for n in range(1, STEPS + 1)]


async def trained(folder: Path, model: Path, **options: Any) -> rig.ScriptedCoordinator:
    config = rig.job(folder, model, **options)
    served = rig.ScriptedCoordinator(batches())
    async with served.serving() as url, rig.learner(config, folder, url) as process:
        assert await process.exit(400) == 0, process.log.read_text()[-4000:]
    return served


def steps(served: rig.ScriptedCoordinator) -> list[StepReport]:
    """One report for each trained step. The learner repeats a report when its step becomes durable."""
    return [report for step, report in {r.step: r for r in served.reports}.items() if step]


def advantages(rewards: list[float]) -> list[float]:
    values = np.array(rewards)
    if values.min() == values.max():
        return [0.0] * len(values)
    return list((values - values.mean()) / (values.std(ddof=1) + 1e-6))


def logprobs(model: Any, row: TrainingRow) -> Tensor:
    """Log-probability of every token of the vocabulary at every position."""
    found: Tensor = model(torch.tensor([row.tokens])).logits[0].log_softmax(-1)
    return found


def reference(
    folder: Path,
    updates: int = 1,
    *,
    lora: bool = False,
    divergence: float = 0.0,
    entropy: float = 0.0,
    decoupled: bool = False,
) -> Trained:
    """Plain PyTorch, one row at a time: final weights, loss and gradient norm of each optimizer step.

    The product loads the model and makes the adapter's first weights. It computes nothing else.
    """
    config = rig.job(folder, folder, lora=LORA if lora else None)
    model: Any = models.load(folder, config.spec.model, config.spec.seed)
    untrained = copy.deepcopy(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    adam = torch.optim.AdamW(trained.values(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    losses, norms, taken = [], [], 0
    for batch in batches():
        groups = []
        for group in batch.groups:
            scored = [e for e in group.episodes if e.reward is not None]
            pairs = list(zip(scored, advantages([e.reward or 0.0 for e in scored]), strict=True))
            if any(advantage for _, advantage in pairs):
                groups.append(pairs)
        before = copy.deepcopy(model)
        for part in np.array_split(np.arange(len(groups)), updates):
            rows = [(row, a) for g in part for episode, a in groups[g] for row in episode.rows]
            tokens = sum(sum(row.mask) for row, _ in rows)
            loss = torch.zeros(())
            for row, advantage in rows:
                log_LV = logprobs(model, row)
                with torch.no_grad():
                    old_LV, untrained_LV = logprobs(before, row), logprobs(untrained, row)
                places = [t for t in range(1, len(row.tokens)) if row.mask[t]]
                at = [t - 1 for t in places], [row.tokens[t] for t in places]
                sampler_T = torch.tensor([row.logprobs[t] for t in places])
                old_T = old_LV[at] if decoupled else sampler_T
                ratio_T = torch.exp(log_LV[at] - old_T)
                surrogate_T = torch.min(ratio_T * advantage, ratio_T.clamp(0.8, 1.2) * advantage)
                apart_T = untrained_LV[at] - log_LV[at]
                uncertain_T = -(log_LV[at[0]].exp() * log_LV[at[0]]).sum(-1)
                share_T = divergence * (apart_T.exp() - 1 - apart_T) - entropy * uncertain_T
                loss = loss + (share_T - torch.exp(old_T - sampler_T) * surrogate_T).sum() / tokens
            adam.zero_grad()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(trained.values(), CLIP)))
            for settings in adam.param_groups:
                settings["lr"] = RATE * min(1.0, (taken + 1) / WARMUP)
            adam.step()
            taken += 1
            losses.append(loss.item())
    return trained, losses, norms


def distance(found: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """Difference of two trained models, relative to how far training moved the weights."""
    shared = [name for name in expected if name in found]
    assert len(shared) == len(found)
    apart = math.sqrt(sum(float((found[n] - expected[n].detach()).square().sum()) for n in shared))
    moved = math.sqrt(sum(float((expected[n].detach() - start[n]).square().sum()) for n in shared))
    return apart / moved


class Steps:
    """What one variant on so many ranks computed."""

    def __init__(self, folder: Path, name: str) -> None:
        found = json.loads((folder / f"{name}.json").read_text())
        self.losses, self.norms, self.packed = found["losses"], found["norms"], found["packed"]
        self.micro_batches: list[int] = found["micro_batches"]
        self.head: str = found["head"]
        self.weights = load_file(folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def ran(
    model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[int, str], Steps]:
    """The steps of a variant.

    When a number of ranks is first asked for, all its variants run.
    """
    folders: dict[int, Path] = {}
    chosen = [item for item in request.session.items if item.path == request.path]
    all_of_them = any(item.get_closest_marker("ci") for item in chosen)
    variants = FULL | ADAPTER | DIVERGENCE | GATHERED if all_of_them else SHORT

    def steps(ranks: int, name: str) -> Steps:
        if ranks not in folders:
            folder = tmp_path_factory.mktemp(f"ranks{ranks}")
            step_variants.start(model, folder, variants, ranks)
            folders[ranks] = folder
        return Steps(folders[ranks], name)

    return steps


@pytest.fixture(scope="module")
def plain(model: Path) -> Callable[..., Trained]:
    """The same steps in plain PyTorch. Each variant is computed once."""
    return cache(partial(reference, model))


def agree(found: Steps, weights: dict[str, Tensor], losses: list[float], norms: list[float]) -> None:
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.norms, norms, rtol=1e-5)
    assert max(float((found.weights[n] - weights[n].detach()).abs().max()) for n in found.weights) < 1e-6


@pytest.mark.ci
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", FULL)
def test_no_setting_changes_a_step(
    ran: Callable[[int, str], Steps], plain: Callable[..., Trained], model: Path, ranks: int, name: str
) -> None:
    """ZeRO stages, ranks, packing, chunks, recomputed activations and offload, against plain PyTorch."""
    found, (weights, losses, norms) = ran(ranks, name), plain()
    agree(found, weights, losses, norms)
    assert distance(found.weights, weights, load_file(model / "model.safetensors")) < 1e-3
    assert max(norms) > CLIP, "the clip was never reached: the test proves less than it says"
    assert found.packed == FULL[name].get("packed", True)
    assert found.head == "chunked"
    if "small" in name:
        assert min(found.micro_batches) > 1


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ADAPTER)
def test_no_setting_changes_a_step_of_an_adapter(
    ran: Callable[[int, str], Steps], ranks: int, name: str
) -> None:
    expected = ran(1, "lora")
    agree(ran(ranks, name), expected.weights, expected.losses, expected.norms)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_frozen_copy_is_the_same_under_every_setting(
    ran: Callable[[int, str], Steps], ranks: int
) -> None:
    expected, free = ran(1, "divergence"), ran(1, "stage1")
    agree(ran(ranks, "divergence-stage3-small"), expected.weights, expected.losses, expected.norms)
    assert expected.losses[0] == pytest.approx(free.losses[0], abs=1e-6), "at first both models are one"
    assert abs(expected.losses[-1] - free.losses[-1]) > 1e-5


@pytest.mark.ci
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", TERMS)
def test_each_term_equals_plain_pytorch_with_gathered_weights(
    ran: Callable[[int, str], Steps], plain: Callable[..., Trained], ranks: int, name: str
) -> None:
    """The adapter switched off, the old policy's pass, and the entropy's gradient, in small micro-batches."""
    options = TERMS[name][1]
    found, (weights, losses, norms) = ran(ranks, name), plain(**options)
    agree(found, weights, losses, norms)
    kept = {option: value for option, value in options.items() if option in ("lora", "updates")}
    _, _, free = plain(**kept)
    assert not np.allclose(norms, free, rtol=1e-3), "the term made no difference: the test proves nothing"


@pytest.mark.parametrize(
    ("processes", "stage", "updates"),
    [
        (2, 2, 1),
        pytest.param(1, 1, 1, marks=pytest.mark.long),
        pytest.param(1, 2, 2, marks=pytest.mark.long),
        pytest.param(2, 3, 1, marks=pytest.mark.long),
        pytest.param(2, 1, 2, marks=pytest.mark.long),
    ],
)
async def test_steps_equal_those_of_plain_pytorch(
    tmp_path: Path, model: Path, left: Callable[..., Any], processes: int, stage: int, updates: int
) -> None:
    served = await trained(
        tmp_path,
        model,
        processes=processes,
        zero_stage=stage,
        algorithm={"updatesPerBatch": updates, "batchSize": 3},
        optimizer=OPTIMIZER,
    )
    expected, losses, norms = reference(model, updates)
    config = rig.job(tmp_path, model)
    found = load_file(left(config).weights(STEPS) / "model.safetensors")
    assert distance(found, expected, load_file(model / "model.safetensors")) < 1e-3
    assert max(float((found[n] - expected[n].detach()).abs().max()) for n in found) < 1e-6
    if updates == 1:
        metrics = [report.metrics for report in steps(served)]
        np.testing.assert_allclose([m["training/loss"] for m in metrics], losses, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose([m["training/grad_norm"] for m in metrics], norms, rtol=1e-5)
        assert max(norms) > CLIP, "the clip was never reached: the test proves less than it says"


@pytest.mark.long
async def test_two_ranks_train_an_adapter_as_one_rank_does(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    one = await trained(tmp_path / "one", model, lora=LORA, optimizer=OPTIMIZER)
    two = await trained(tmp_path / "two", model, lora=LORA, optimizer=OPTIMIZER, processes=2, zero_stage=3)
    for first, second in zip(steps(one), steps(two), strict=True):
        for name in ("training/loss", "training/grad_norm", "training/entropy", "training/ratio_max"):
            assert second.metrics[name] == pytest.approx(first.metrics[name], rel=1e-5, abs=1e-7), name
    adapters = [
        load_file(left(rig.job(tmp_path / name, model)).weights(STEPS) / "adapter_model.safetensors")
        for name in ("one", "two")
    ]
    assert adapters[0].keys() == adapters[1].keys()
    for name, tensor in adapters[0].items():
        np.testing.assert_allclose(adapters[1][name], tensor, atol=1e-6, err_msg=name)


def canary_error(model: Any, canary: Canary) -> float:
    tokens = torch.tensor([canary.tokens])
    with torch.no_grad():
        log_LV = model(tokens).logits[0, :-1].float().log_softmax(-1)
    found = log_LV.gather(1, tokens[0, 1:, None]).squeeze(1)
    return float((found - torch.tensor(canary.logprobs)).abs().mean())


async def test_a_published_adapter_is_what_peft_loads(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    await trained(tmp_path, model, lora=LORA, optimizer={"learningRate": 1e-2})
    reports = left(rig.job(tmp_path, model)).reports()
    for report in (reports[0], reports[-1]):
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        loaded = PeftModel.from_pretrained(base, left(rig.job(tmp_path, model)).weights(report.step))
        assert canary_error(loaded, report.weights.canary) < 1e-5
        stale = reports[0 if report is reports[-1] else -1].weights.canary
        assert canary_error(loaded, stale) > 10 * stale.tolerance


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.ci)])
async def test_a_published_model_has_every_tensor(
    tmp_path: Path, model: Path, untied_model: Path, left: Callable[..., Any], tied: bool
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = model if tied else untied_model
    await trained(tmp_path, base, optimizer={"learningRate": 1e-3}, zero_stage=3)
    report = left(rig.job(tmp_path, base)).report(STEPS)
    folder = left(rig.job(tmp_path, base)).weights(STEPS)
    assert report.weights.kind == "full"
    assert {f.name for f in report.weights.files} >= {"model.safetensors", "config.json", "tokenizer.json"}
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert canary_error(loaded, report.weights.canary) < 1e-5
    assert load_file(folder / "model.safetensors").keys() == load_file(base / "model.safetensors").keys()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(base).chat_template


async def test_bfloat16_trains_and_publishes_bfloat16(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    served = await trained(tmp_path, model, lora=LORA, dtype="bfloat16", optimizer={"learningRate": 5e-3})
    adapter = load_file(left(rig.job(tmp_path, model)).weights(STEPS) / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in adapter.values()} == {torch.bfloat16}
    assert all(math.isfinite(report.metrics["training/grad_norm"]) for report in steps(served))
    assert served.reports[-1].weights.files != served.reports[0].weights.files
