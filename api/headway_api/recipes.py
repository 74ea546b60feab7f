"""Starting points for model families, and guard rails: what seems unwise in a job is said, never refused.

A guard rail is written once and held in two places, as a `Rule` is. Its CEL is part of the chart's
ValidatingAdmissionPolicy, which warns at `kubectl apply`; its Python twin is what the operator records in
`status.warnings`, and what this prints:

    python -m headway_api.recipes job.yaml             what the family of its model starts with, and warnings
    python -m headway_api.recipes --policy FILE [--check]     write the chart's part, or tell if it differs

docs/recipes.md has the sources of the numbers.
"""

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from headway_api.rules import cel_literal
from headway_api.spec.agent import BuiltinAgent
from headway_api.spec.training import RLTrainingJob, RLTrainingJobSpec


@dataclass(frozen=True)
class Recipe:
    """Where to start with one family of models."""

    family: str
    pattern: str
    """Regular expression, in RE2's syntax, that is found in `spec.model.base` of the family."""
    learning_rate: float
    """With a LoRA adapter of rank 32 and alpha 64; a tenth of it with full weights."""
    source: str
    """Where the learning rate comes from. Nobody has tuned any of them with this platform."""
    context_length: int | None = None
    """Tokens its configuration allows (max_position_embeddings); None where it differs within the family."""

    def spec(self) -> dict[str, Any]:
        """The fragment of a spec that is its own; everything else has its default."""
        return {
            "model": {"lora": {"rank": 32, "alpha": 64}},
            "optimizer": {"learningRate": self.learning_rate},
        }


MTRL: Final = "default of SageMaker's multi-turn RL; a starting point, not tuned for this family"
RECIPES: Final = (
    Recipe(
        "gpt-oss", "(?i)gpt-oss-(20|120)b", 1e-5, "SageMaker's multi-turn RL recipe for gpt-oss-20b", 131072
    ),
    Recipe("Qwen3 2507", "(?i)qwen3-[0-9.]+b(-a[0-9]+b)?-(instruct|thinking)-2507", 4e-5, MTRL, 262144),
    Recipe("Qwen3", r"(?i)qwen3-(0\.6|1\.7|4|8|14|32|30b-a3|235b-a22)b(-fp8)?$", 4e-5, MTRL, 40960),
    Recipe("Qwen2.5 Instruct", r"(?i)qwen2\.5-(coder-)?[0-9.]+b-instruct$", 4e-5, MTRL, 32768),
    Recipe("Llama 3.1 to 3.3", r"(?i)llama-3\.[123]-[0-9]+b", 4e-5, MTRL, 131072),
    Recipe("Llama 3", "(?i)meta-llama-3-[0-9]+b", 4e-5, MTRL, 8192),
)
"""The first whose pattern is found counts; with any other model start from the defaults."""


def recipe(base: str) -> Recipe | None:
    """The family that `spec.model.base` belongs to."""
    return next((known for known in RECIPES if re.search(known.pattern, base)), None)


@dataclass(frozen=True)
class GuardRail:
    """What should hold of a job, and what to tell the user where it does not."""

    cel: str
    """True where all is well; `object` is the job, with its defaults filled in."""
    message: str
    holds: Callable[[RLTrainingJobSpec], bool]

    def validation(self) -> dict[str, str]:
        """The entry of a ValidatingAdmissionPolicy's `validations`."""
        return {"expression": self.cel, "message": self.message}


FULL_RATE: Final = 1e-5
LORA_RATE: Final = 1e-3
GPT_OSS_RATE: Final = 2e-5
CISPO_HIGH: Final = 2.0
CLIP_LOW, CLIP_HIGH = 0.5, 2.0
UPDATES: Final = 16
EPISODES: Final = 32
TURNS: Final = BuiltinAgent().max_turns

ALGORITHM: Final = "object.spec.algorithm"
RATE: Final = "double(object.spec.optimizer.learningRate)"
FULL: Final = "has(object.spec.model.full)"
BASE: Final = "object.spec.model.base"
OWN_LOOP: Final = (
    "(has(object.spec.agent) && (has(object.spec.agent.http) || has(object.spec.agent.sandboxed)))"
)
PLANNED: Final = (
    "(object.spec.rollout.sampling.maxTokens * (has(object.spec.agent) && has(object.spec.agent.builtin) "
    f"? object.spec.agent.builtin.maxTurns : {TURNS}))"
)
"""Tokens that all turns of the platform's own loop may sample."""


def planned(spec: RLTrainingJobSpec) -> int:
    """The same in Python."""
    return spec.rollout.sampling.max_tokens * spec.agent.planned_turns


def _fits_family(spec: RLTrainingJobSpec) -> bool:
    known = recipe(spec.model.base)
    limited = known is not None and known.context_length is not None and spec.model.context_length is None
    if known is None or known.context_length is None or not limited or not spec.agent.is_builtin:
        return True
    return planned(spec) < known.context_length


def _fits_family_cel() -> str:
    """One choice after the other, as `recipe` goes through them: the room of the first family that fits."""
    room = "true"
    for known in reversed(RECIPES):
        fits = "true" if known.context_length is None else f"{PLANNED} < {known.context_length}"
        room = f"({BASE}.matches({cel_literal(known.pattern)}) ? {fits} : {room})"
    return f"has(object.spec.model.contextLength) || {OWN_LOOP} || {room}"


def _clip_is_a_ratio(spec: RLTrainingJobSpec) -> bool:
    clip = spec.algorithm.clip
    if clip is None or spec.algorithm.loss != "ppo":
        return True
    return (clip.low is None or clip.low >= CLIP_LOW) and clip.high <= CLIP_HIGH


def _bounded_or_fresh(spec: RLTrainingJobSpec) -> bool:
    algorithm = spec.algorithm
    uncorrected = algorithm.correction in ("none", "bypass")
    return not (
        algorithm.loss == "importance_sampling" and uncorrected and algorithm.max_steps_off_policy > 1
    )


GUARD_RAILS: Final = (
    GuardRail(
        f"{ALGORITHM}.loss != 'cispo' || !has({ALGORITHM}.clip) || "
        f"double({ALGORITHM}.clip.high) >= {CISPO_HIGH}",
        "spec.algorithm.clip.high is the bound of the ratio itself; below 2 it takes from cispo what sets it "
        "apart: leave clip out, which is 6, or use ppo",
        lambda spec: (
            spec.algorithm.loss != "cispo"
            or spec.algorithm.clip is None
            or spec.algorithm.clip.high >= CISPO_HIGH
        ),
    ),
    GuardRail(
        f"{ALGORITHM}.loss != 'cispo' || {ALGORITHM}.maxStepsOffPolicy == 0",
        "spec.algorithm.loss: cispo tends to collapse after 40 to 80 steps; make the first run with ppo, or "
        "set spec.algorithm.maxStepsOffPolicy: 0",
        lambda spec: spec.algorithm.loss != "cispo" or spec.algorithm.max_steps_off_policy == 0,
    ),
    GuardRail(
        f"{ALGORITHM}.loss != 'importance_sampling' || !({ALGORITHM}.correction in ['none', 'bypass']) || "
        f"{ALGORITHM}.maxStepsOffPolicy <= 1",
        "spec.algorithm.maxStepsOffPolicy: importance_sampling does not bound the ratio, which grows with "
        "every step the sampler lags; set 0 or 1, or use ppo",
        _bounded_or_fresh,
    ),
    GuardRail(
        f"{ALGORITHM}.loss != 'ppo' || !has({ALGORITHM}.clip) || "
        f"((!has({ALGORITHM}.clip.low) || double({ALGORITHM}.clip.low) >= {CLIP_LOW}) && "
        f"double({ALGORITHM}.clip.high) <= {CLIP_HIGH})",
        "spec.algorithm.clip holds bounds of the ratio itself, not distances from 1; what papers call 0.2 is "
        "low: 0.8 and high: 1.2",
        _clip_is_a_ratio,
    ),
    GuardRail(
        f"{ALGORITHM}.updatesPerBatch * (1 + {ALGORITHM}.maxStepsOffPolicy) <= {UPDATES}",
        "spec.algorithm.updatesPerBatch x (1 + maxStepsOffPolicy) is how many updates may come between a "
        f"token and its training; published runs stay within {UPDATES}: lower one of them",
        lambda spec: spec.algorithm.updates_per_batch * (1 + spec.algorithm.max_steps_off_policy) <= UPDATES,
    ),
    GuardRail(
        f"{ALGORITHM}.batchSize * {ALGORITHM}.groupSize >= {EPISODES} * {ALGORITHM}.updatesPerBatch",
        "spec.algorithm.batchSize x groupSize / updatesPerBatch is the episodes of one optimizer step; with "
        f"fewer than {EPISODES} its direction is noisy: raise batchSize",
        lambda spec: spec.algorithm.episodes_per_step >= EPISODES * spec.algorithm.updates_per_batch,
    ),
    GuardRail(
        f"{ALGORITHM}.groupSize > 2 || {ALGORITHM}.advantage.method != 'group_based' || "
        f"{ALGORITHM}.advantage.normalize != 'std'",
        "spec.algorithm.groupSize: of 2 episodes, divided by their own standard deviation, one has the same "
        "advantage however little better it was; raise it, or set spec.algorithm.advantage.normalize: none",
        lambda spec: (
            spec.algorithm.group_size > 2
            or spec.algorithm.advantage.method != "group_based"
            or spec.algorithm.advantage.normalize != "std"
        ),
    ),
    GuardRail(
        f"!{FULL} || {RATE} <= {FULL_RATE}",
        f"spec.optimizer.learningRate is above {FULL_RATE}: full weights want a tenth of what LoRA does; "
        "published runs on models of billions of weights use 1e-6",
        lambda spec: spec.model.full is None or spec.optimizer.learning_rate <= FULL_RATE,
    ),
    GuardRail(
        f"{FULL} || {RATE} <= {LORA_RATE}",
        f"spec.optimizer.learningRate is above {LORA_RATE}, more than LoRA bears but on very small models; "
        "4e-5 is the default",
        lambda spec: spec.model.full is not None or spec.optimizer.learning_rate <= LORA_RATE,
    ),
    GuardRail(
        f"{FULL} || !{BASE}.matches('(?i)gpt-oss') || {RATE} <= {GPT_OSS_RATE}",
        "spec.optimizer.learningRate: gpt-oss wants a lower one than other families; start with 1e-5",
        lambda spec: (
            spec.model.full is not None
            or re.search("(?i)gpt-oss", spec.model.base) is None
            or spec.optimizer.learning_rate <= GPT_OSS_RATE
        ),
    ),
    GuardRail(
        f"object.spec.optimizer.warmupSteps < object.spec.schedule.maxSteps * {ALGORITHM}.updatesPerBatch",
        "spec.optimizer.warmupSteps: the job is over before the learning rate is reached; lower it, or raise "
        "spec.schedule.maxSteps",
        lambda spec: spec.optimizer.warmup_steps < spec.schedule.max_steps * spec.algorithm.updates_per_batch,
    ),
    GuardRail(
        "double(object.spec.rollout.sampling.temperature) == 1.0",
        "spec.rollout.sampling.temperature: what is trained is the policy at this temperature, so it must be "
        "served at it too; 1 is usual",
        lambda spec: spec.rollout.sampling.temperature == 1,
    ),
    GuardRail(
        f"!has(object.spec.model.contextLength) || {OWN_LOOP} || {PLANNED} < object.spec.model.contextLength",
        "spec.rollout.sampling.maxTokens x spec.agent.builtin.maxTurns takes all of spec.model.contextLength "
        "and leaves nothing to the prompt; the preflight will refuse it: lower one of the first two",
        lambda spec: (
            spec.model.context_length is None
            or not spec.agent.is_builtin
            or planned(spec) < spec.model.context_length
        ),
    ),
    GuardRail(
        _fits_family_cel(),
        f"spec.rollout.sampling.maxTokens x spec.agent.builtin.maxTurns ({TURNS} unless given) is more than "
        "models of this family hold; the preflight will refuse it: lower one of them",
        _fits_family,
    ),
)


def warnings(spec: RLTrainingJobSpec) -> list[str]:
    """What seems unwise in a job, each with what to write instead."""
    return [rail.message for rail in GUARD_RAILS if not rail.holds(spec)]


def policy() -> str:
    """The validations of the chart's ValidatingAdmissionPolicy, as YAML."""
    head = "# Generated by `make crds` from headway_api.recipes; do not edit.\n"
    entries = [rail.validation() for rail in GUARD_RAILS]
    return head + yaml.safe_dump(entries, sort_keys=False, width=110)


def advice(job: RLTrainingJob) -> str:
    """What there is to say of a job, for people to read."""
    known = recipe(job.spec.model.base)
    lines = [f"{job.spec.model.base} is of no family with a recipe; start from the defaults"]
    if known is not None:
        fragment = yaml.safe_dump(known.spec(), sort_keys=False).splitlines()
        lines = [f"{known.family}: {known.source}", *(f"  {line}" for line in fragment)]
    return "\n".join([*lines, *(f"Warning: {message}" for message in warnings(job.spec))])


def main(arguments: list[str] | None = None) -> int:
    """Say what is known of a job's model and what seems unwise in it, or write the chart's part."""
    parser = argparse.ArgumentParser(prog="python -m headway_api.recipes", description=main.__doc__)
    parser.add_argument("job", type=Path, nargs="?", help="an RLTrainingJob as YAML")
    parser.add_argument("--policy", type=Path, help="file of the chart to write")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file differs")
    options = parser.parse_args(arguments)
    if options.job is not None:
        print(advice(RLTrainingJob.model_validate(yaml.safe_load(options.job.read_text()))))
    if options.policy is None:
        return 0
    differs = not options.policy.exists() or options.policy.read_text() != policy()
    if differs and not options.check:
        options.policy.write_text(policy())
    elif differs:
        print(f"{options.policy} differs from headway_api.recipes; run: make crds", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
