"""The rig runs the product: a real learner takes two steps on real episodes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.signals import read, rig, series
from tests.signals.circumstances import Change, Circumstances, World
from tests.signals.demo import Settings, quickstart
from tests.signals.sampler import Kept, Sampler, Shape, drawn, forward

from headway_coordinator.engines.vllm import Request

pytestmark = [pytest.mark.ci, pytest.mark.integration, pytest.mark.timeout(600)]

FEW = {"algorithm": {"batchSize": 2, "groupSize": 4, "maxStepsOffPolicy": 2}, "evaluation": {"maxRows": 4}}

NEWER = (
    *("/forks_of/", "/rows/", "/tool_calls/malformed_share_of/"),
    *("/episode_token_limit_rate", "/turns/guided_share"),
)
"""Metrics that were added after the series were recorded. No signal reads them."""


@pytest.fixture(scope="module")
def base() -> Path:
    return quickstart.inputs(Settings.from_environ({}).cache, rig.SEED) / "model"


@pytest.fixture(scope="module")
def two_steps(base: Path) -> series.Series:
    world = World(lags=(0, 1), lost=0.2, late=0.2, garbled=0.5)
    return rig.run(Circumstances("two", "chosen_on", "two steps", steps=2, spec=FEW, world=world))


def test_the_servers_compute_what_the_model_computes(base: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    shape, weights = Shape.of(base), load_file(base / "model.safetensors")
    tokens = torch.randint(0, 1000, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        kept = Kept.empty(shape, 2, 64)
        forward(shape, weights, tokens[:, :9], torch.tensor([0, 0]), kept)
        # The first row has more tokens in the cache than the second when the rest is fed.
        forward(shape, weights, torch.stack([tokens[0, 9:12], tokens[0, :3]]), torch.tensor([9, 9]), kept)
        rest = torch.stack([torch.cat([tokens[0, 12:], torch.zeros(3, dtype=torch.long)]), tokens[1, 9:]])
        hidden = forward(shape, weights, rest, torch.tensor([12, 9]), kept)
    logits = hidden @ weights["model.embed_tokens.weight"].T
    assert torch.allclose(logits[0, :8], expected[0, 12:], atol=1e-4)
    assert torch.allclose(logits[1], expected[1, 9:], atol=1e-4)


def test_a_sampled_turn_does_not_depend_on_others_in_its_batch(base: Path) -> None:
    from safetensors.torch import load_file

    shape, weights = Shape.of(base), load_file(base / "model.safetensors")
    asked = [(f"g-{n}-0", request(seed=n, prompt=[*range(100, 120), 7 + n % 3])) for n in range(6)]
    more = [(name, request(seed=9, prompt=[*given.prompt, 5, 6, 7])) for name, given in asked]
    together = Sampler(shape, weights, rows=6, length=128)
    first, second = together.sample(asked), together.sample(more)
    for n in range(6):
        alone = Sampler(shape, weights, rows=6, length=128)
        assert alone.sample([asked[n]])[0].tokens == first[n].tokens
        assert alone.sample([more[n]])[0].tokens == second[n].tokens


def request(seed: int, prompt: list[int]) -> Request:
    return Request(
        prompt=prompt, max_tokens=12, temperature=1.3, top_p=1.0, seed=seed, stop_token_ids=[2, 3, 4]
    )


def test_tokens_are_drawn_by_their_probability_within_top_p() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(20_000, 4)
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens, logprobs = drawn(logits, uniform, temperature=1.0, top_p=1.0)
    shares = tokens.bincount(minlength=4) / len(tokens)
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.015)
    assert logprobs.exp()[:9].tolist() == pytest.approx([[0.5, 0.3, 0.15, 0.05][t] for t in tokens[:9]])
    tokens, logprobs = drawn(logits, uniform, temperature=1.0, top_p=0.7)
    assert sorted(set(tokens.tolist())) == [0, 1]
    assert logprobs.exp().unique().tolist() == pytest.approx([0.375, 0.625], abs=1e-4)
    assert set(drawn(logits, uniform, temperature=0.0, top_p=1.0)[0].tolist()) == {0}


def test_two_real_learner_steps_give_the_recorded_metric_names(two_steps: series.Series) -> None:
    [start, one, two] = two_steps.steps
    assert start.metrics == {}
    assert start.validation is not None
    assert one.validation is None
    assert two.validation is not None
    recorded = {name for s in read.all_series() for name in series.columns(s.steps[:3])}
    varies = {
        name for name in recorded if "/task_" in name or "reward_metrics/" in name or "explained/" in name
    }
    varies |= {"training/reference_kl"}
    assert recorded - varies <= series.columns(two_steps.steps)
    newer = {name for name in series.columns(two_steps.steps) if any(part in name for part in NEWER)}
    assert series.columns(two_steps.steps) - newer <= recorded


def test_metrics_of_two_steps_reflect_what_was_done_to_them(two_steps: series.Series) -> None:
    _, one, two = two_steps.steps
    late, gone = (one.metrics[f"episodes/{name}_rate"] for name in ("time_limit", "outcome_InfraError"))
    assert 0 <= late <= gone < 1
    assert one.metrics["staleness/lag_max"] == 0
    assert two.metrics["staleness/lag_max"] == 1
    assert two.metrics["staleness/lag_mean"] == pytest.approx(0.5, abs=0.3)
    assert one.metrics["training/mismatch_kl"] < 1e-9  # the weights are the learner's own, in the same format
    assert two.metrics["rollout/tool_calls/malformed_share"] > 0.2


def test_learner_and_servers_follow_a_change_of_the_spec() -> None:
    sampling = {"sampling": {"temperature": 0.5}}
    change = Change({"optimizer": {"learningRate": 5e-3, "gradientClip": 2.0}, "rollout": sampling})
    later = {2: Change({"optimizer": {"warmupSteps": 1}}), 3: change}
    found = rig.run(Circumstances("changed", "chosen_on", "another spec", steps=3, spec=FEW, later=later))
    assert [step.metrics["training/learning_rate"] for step in found.steps[1:]] == [2e-4, 1e-3, 5e-3]
    assert found.steps[3].metrics["training/mismatch_kl"] < 1e-9  # both sides use the new temperature


def test_a_series_is_stored_as_the_rig_makes_it(two_steps: series.Series, tmp_path: Path) -> None:
    series.write(two_steps, tmp_path)
    [found] = series.read_all(folder=tmp_path)
    assert found.steps == two_steps.steps
    assert found.known == two_steps.known
