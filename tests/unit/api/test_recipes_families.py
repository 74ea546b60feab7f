"""Recipes: each model finds its family, and a recipe pasted into a job passes guard rails and preflight."""

from __future__ import annotations

import json
from contextlib import nullcontext
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusal_cases import SMALLEST, changed

from headway_api import recipes
from headway_api.exits import JobError
from headway_api.families import FAMILIES, OTHER, ModelFamily, StartingRates, recipe
from headway_api.sandbox_api import ResetReply
from headway_api.spec.training import RLTrainingJob
from headway_coordinator.preflight import checks

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = {
    str(path.relative_to(ROOT)): document
    for path in sorted((ROOT / "examples").rglob("*.yaml"))
    if "kind: RLTrainingJob" in path.read_text()
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] == "RLTrainingJob"
}
MEMBERS = [
    ("hf://openai/gpt-oss-120b", "gpt-oss", 1e-5),
    ("hf://unsloth/gpt-oss-20b-unsloth-bnb-4bit", "gpt-oss", 1e-5),
    ("s3://acme/models/gpt-oss-20b", "gpt-oss", 1e-5),
    ("hf://Qwen/Qwen3.5-9B-Base", "Qwen3.5", 4e-5),
    ("hf://Qwen/Qwen3.5-35B-A3B", "Qwen3.5", 4e-5),
    ("hf://Qwen/Qwen3-4B-Instruct-2507", "Qwen3 2507", 4e-5),
    ("hf://Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen3 2507", 2e-5),
    ("hf://Qwen/Qwen3-235B-A22B-Thinking-2507", "Qwen3 2507", 1e-5),
    ("hf://Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3 Coder", 2e-5),
    ("hf://Qwen/Qwen3-Coder-Next", "Qwen3 Coder", 1e-5),
    ("hf://Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3 Next", 1e-5),
    ("hf://Qwen/Qwen3-8B-Base", "Qwen3 Base", 2e-5),
    ("hf://Qwen/Qwen3-30B-A3B-Base", "Qwen3 Base", 2e-5),
    ("hf://Qwen/Qwen3-0.6B", "Qwen3", 4e-5),
    ("hf://Qwen/Qwen3-8B", "Qwen3", 2e-5),
    ("hf://Qwen/Qwen3-8B-AWQ", "Qwen3", 2e-5),
    ("s3://acme/models/qwen3-8b-fp8", "Qwen3", 2e-5),
    ("s3://bucket/Qwen3-8B/", "Qwen3", 2e-5),
    ("s3://bucket-32b/Qwen3-4B", "Qwen3", 4e-5),
    ("hf://Qwen/Qwen3-32B", "Qwen3", 1e-5),
    ("hf://deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "DeepSeek-R1-0528 of Qwen3", 2e-5),
    ("hf://deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "DeepSeek-R1 distilled", 1e-5),
    ("hf://Qwen/Qwen2.5-Math-7B", "Qwen2.5 Math", 3e-5),
    ("hf://Qwen/Qwen2.5-7B", "Qwen2.5 Base", 3e-5),
    ("hf://Qwen/Qwen2.5-3B", "Qwen2.5", 3e-5),
    ("hf://Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5", 3e-5),
    ("hf://Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen2.5", 3e-5),
    ("hf://Qwen/Qwen2.5-Coder-7B", "Qwen2.5", 3e-5),
    ("hf://meta-llama/Llama-3.2-1B-Instruct", "Llama 3.1 to 3.3", 7e-5),
    ("hf://meta-llama/Llama-3.2-3B", "Llama 3.1 to 3.3", 5e-5),
    ("hf://meta-llama/Meta-Llama-3.1-8B", "Llama 3.1 to 3.3", 4e-5),
    ("hf://meta-llama/Llama-3.3-70B-Instruct", "Llama 3.1 to 3.3", 2e-5),
    ("hf://meta-llama/Llama-3.1-405B-Instruct", "Llama 3.1 to 3.3", 1e-5),
    ("hf://meta-llama/Meta-Llama-3-8B", "Llama 3", 4e-5),
    ("hf://google/gemma-3-1b-it", "Gemma 3, small", 1e-5),
    ("hf://google/gemma-3-12b-it", "Gemma 3", 1e-5),
    ("hf://google/gemma-2-9b-it", "Gemma 2", 1e-5),
    ("hf://mistralai/Mistral-Small-3.2-24B-Instruct-2506", "Mistral Small 3.1, 3.2", 1e-5),
    ("hf://mistralai/Mistral-7B-Instruct-v0.3", "Mistral", 1e-5),
]
"""A model, its family, and its starting learning rate with LoRA."""
STRANGERS = [
    "hf://acme/other-7b",
    "s3://acme/models/qwen3-8b-ours",
    "s3://acme/qwen3-8b/checkpoint-3",
    "hf://Qwen/Qwen3-Embedding-8B",
    "hf://Qwen/Qwen3-VL-8B-Instruct",
    "hf://acme/Big-Qwen3-8B",
]
VARIED = [
    "hf://Qwen/Qwen3-14B",
    "hf://Qwen/Qwen2.5-Math-1.5B",
    "hf://meta-llama/Llama-3.1-8B-Instruct",
    "hf://google/gemma-3-4b-it",
]
"""Models with contexts of 40960, 4096 and 131072 tokens, and one whose configuration has none."""
JOBS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "many turns": {"spec.agent": {"builtin": {"maxTurns": 31}}},
    "short turns": {
        "spec.rollout": {"sampling": {"maxTokens": 700}},
        "spec.agent": {"builtin": {"maxTurns": 999}},
    },
    "long validation": {"spec.evaluation": {"sampling": {"maxTokens": 131072}}},
    "context too long": {"spec.model.contextLength": 2097152},
    "context of its own": {
        "spec.model.contextLength": 4096,
        "spec.agent": {"builtin": {"maxTurns": 1}},
        "spec.rollout": {"sampling": {"maxTokens": 4096}},
    },
    "own service": {
        "spec.agent": {"http": {"url": "http://agent"}},
        "spec.rollout": {"sampling": {"maxTokens": 131072}},
    },
    "own program": {"spec.agent": {"sandboxed": {"command": ["agent"]}}},
}
WAYS: dict[str, dict[str, Any]] = {"LoRA": {}, "full weights": {"spec.model.full": {}}}


class Prompted:
    """A renderer whose prompts all have so many tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def render(self, messages: object, tools: object) -> list[int]:
        return [0] * self.tokens


def merged(into: Any, fragment: Any) -> Any:
    if not (isinstance(into, dict) and isinstance(fragment, dict)):
        return fragment
    return into | {name: merged(into.get(name), value) for name, value in fragment.items()}


def pasted(body: dict[str, Any]) -> RLTrainingJob:
    """The job with the printed recipe written into its spec."""
    lines = recipes.advice(RLTrainingJob.model_validate(body)).splitlines()
    fragment = yaml.safe_load("\n".join(line for line in lines if line.startswith("  ")))
    return RLTrainingJob.model_validate(body | {"spec": merged(deepcopy(body["spec"]), fragment)})


@pytest.mark.parametrize(("base", "family", "rate"), MEMBERS, ids=[base for base, *_ in MEMBERS])
def test_a_model_is_of_its_family(base: str, family: str, rate: float) -> None:
    found = recipe(base)
    assert found is not None
    assert (found.family.name, found.start.lora, found.start.full) == (family, rate, 1e-6)


@pytest.mark.parametrize("base", [base for base, *_ in MEMBERS])
def test_preflight_refuses_the_context_that_the_rail_warns_of(base: str, tmp_path: Path) -> None:
    found = recipe(base)
    assert found is not None
    (tmp_path / "config.json").write_text(json.dumps(configuration(found.family)))
    short = {"spec.model.base": base, "spec.rollout": {"sampling": {"maxTokens": 64}}}
    for more, refused in ((0, False), (1, True)):
        own = {"spec.model.contextLength": found.family.context_length + more}
        spec = RLTrainingJob.model_validate(changed(SMALLEST, short | own)).spec
        rails = [
            text for text in recipes.warnings(spec) if text.startswith("spec.model.contextLength is above")
        ]
        assert bool(rails) is refused
        with pytest.raises(JobError, match="own limit") if refused else nullcontext():
            checks.context_length(tmp_path, spec.model.base, spec.model.context_length)


def configuration(family: ModelFamily) -> dict[str, Any]:
    """The part of the family's config.json that has the context length."""
    config = {"max_position_embeddings": family.context_length} if family.says_context else {}
    return config or {"text_config": {"hidden_size": 8}}


@pytest.mark.parametrize("base", STRANGERS)
def test_an_ambiguous_model_is_of_no_family(base: str) -> None:
    assert recipe(base) is None
    body = changed(SMALLEST, {"spec.model.base": base})
    assert "(no family with a recipe), LoRA: default of" in recipes.advice(RLTrainingJob.model_validate(body))
    for way in WAYS.values():
        assert recipes.warnings(pasted(changed(body, way)).spec) == []


@pytest.mark.parametrize(
    ("base", "way", "kind"),
    [*product([base for base, *_ in MEMBERS], WAYS, ["as it comes"]), *product(VARIED, WAYS, JOBS)],
)
def test_a_pasted_recipe_passes_rails_and_preflight(base: str, way: str, kind: str, tmp_path: Path) -> None:
    spec = pasted(changed(SMALLEST, {"spec.model.base": base} | WAYS[way] | JOBS[kind])).spec
    found = recipe(base)
    assert found is not None
    assert recipes.warnings(spec) == []
    assert spec.optimizer.learning_rate == (found.start.lora if way == "LoRA" else found.start.full)
    assert (spec.model.full is None) == (way == "LoRA")
    (tmp_path / "config.json").write_text(json.dumps(configuration(found.family)))
    length = checks.context_length(tmp_path, spec.model.base, spec.model.context_length)
    first = ResetReply(messages=[{"role": "user", "content": "a prompt"}], tools=[])
    checks.context(first, Prompted(length // 5), length, spec)  # type: ignore[arg-type]


def test_every_recipe_is_tried_above() -> None:
    tried = {found.start for base, *_ in MEMBERS if (found := recipe(base)) is not None}
    assert tried == {start for family in FAMILIES for start in family.starts}
    assert {name for _, name, _ in MEMBERS} == {family.name for family in FAMILIES}


def test_turns_that_leave_room_stay_as_they_are() -> None:
    own = {"spec.rollout": {"sampling": {"maxTokens": 4096}}, "spec.agent": {"builtin": {"maxTurns": 8}}}
    spec = RLTrainingJob.model_validate(changed(SMALLEST, own)).spec
    assert recipes.fragment(spec) == {
        "model": {"lora": {"rank": 32, "alpha": 32}},
        "optimizer": {"learningRate": 2e-5},
    }


def test_tokens_are_halved_before_turns() -> None:
    spec = RLTrainingJob.model_validate(SMALLEST).spec
    assert recipes.fragment(spec)["rollout"] == {"sampling": {"maxTokens": 2048}}
    assert "agent" not in recipes.fragment(spec)
    small = changed(SMALLEST, {"spec.model.base": "hf://meta-llama/Meta-Llama-3-8B"})
    found = recipes.fragment(RLTrainingJob.model_validate(small).spec)
    assert found["rollout"] == {"sampling": {"maxTokens": 512}}
    assert found["agent"] == {"builtin": {"maxTurns": 8}}


def test_an_adapter_to_start_from_keeps_its_rank() -> None:
    warm = changed(SMALLEST, {"spec.model.warmStart": {"job": "before"}, "spec.model.lora": {"rank": 8}})
    spec = pasted(warm).spec
    assert spec.model.lora is not None
    assert (spec.model.lora.rank, spec.optimizer.learning_rate) == (8, 2e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_get_no_warning_but_a_very_small_models_rate(name: str) -> None:
    warnings = recipes.warnings(RLTrainingJob.model_validate(EXAMPLES[name]).spec)
    assert [text for text in warnings if "on very small models" not in text] == []


def test_the_page_has_the_same_recipes() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for family in FAMILIES:
        assert f"| {family.name} | {family.context_length} |" in page, family.name
    for start in {OTHER, *(start for family in FAMILIES for start in family.starts)}:
        assert row(start) in page, row(start)


def row(start: StartingRates) -> str:
    lora, full = (f"{rate:.0e}".replace("e-0", "e-") for rate in (start.lora, start.full))
    return f"| {start.models} | {lora} | {start.alpha} | {start.lora_source} | {full} | {start.full_source} |"
