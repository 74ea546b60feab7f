"""Starting points for model families, and guard rails: warnings about what seems unwise in a job, never
refusals.

A guard rail has two forms, like a `Rule`. Its CEL expression is in the chart's ValidatingAdmissionPolicy,
which warns at `kubectl apply`. Its Python form gives the warnings that the operator records in
`status.warnings`, and that this command prints:

    python -m headway_api.recipes job.yaml             what to write into it for its model, and warnings
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
from pydantic import ValidationError

from headway_api.families import FAMILIES, OTHER, RANK, recipe
from headway_api.mistakes import mistakes
from headway_api.remedies import WATCH
from headway_api.rules import cel_literal
from headway_api.spec.agent import BuiltinAgent
from headway_api.spec.algorithm import CAPPED, CORRECTIONS, NORMALIZING
from headway_api.spec.training import RLTrainingJob, RLTrainingJobSpec


@dataclass(frozen=True)
class GuardRail:
    """A condition that a job should satisfy, and what to tell the user if it does not."""

    cel: str
    """CEL expression that is true if the condition holds. `object` is the job with its defaults filled in."""
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
ROW_LOW, ROW_HIGH = 0.95, 1.05
"""Bounds of the mean ratio of a training row, which moves far less than the ratio of a token."""
UPDATES: Final = 16
UNBOUNDED_UPDATES: Final = 2
EPISODES: Final = 32
TURNS: Final = BuiltinAgent().max_turns
NO_LIMIT: Final = 2**31
"""Tokens of context that an unknown model is assumed to have: more than any model has."""

ALGORITHM: Final = "object.spec.algorithm"
RATE: Final = "double(object.spec.optimizer.learningRate)"
FULL: Final = "has(object.spec.model.full)"
BASE: Final = "object.spec.model.base"
CONTEXT: Final = "object.spec.model.contextLength"
OWN_LOOP: Final = (
    "(has(object.spec.agent) && (has(object.spec.agent.http) || has(object.spec.agent.sandboxed)))"
)
COLLAPSE: Final = "object.spec.collapse"
EVERY: Final = "object.spec.evaluation.everySteps"
TURN: Final = "object.spec.rollout.sampling.maxTokens"
VALIDATION_TURN: Final = "object.spec.evaluation.sampling.maxTokens"
LONGEST_TURN: Final = (
    f"(has(object.spec.data.validation) && has({VALIDATION_TURN}) && {VALIDATION_TURN} > {TURN} ? "
    f"{VALIDATION_TURN} : {TURN})"
)
NEEDED: Final = (
    f"({OWN_LOOP} ? {LONGEST_TURN} : {LONGEST_TURN} * (has(object.spec.agent) && "
    f"has(object.spec.agent.builtin) ? object.spec.agent.builtin.maxTurns : {TURNS}) + 1)"
)
"""`needed` in CEL."""
ROOM: Final = "({} : {})".format(
    " : ".join(
        f"{BASE}.matches({cel_literal(family.pattern)}) ? {family.context_length}" for family in FAMILIES
    ),
    NO_LIMIT,
)
"""`room` in CEL: one conditional for each family, in the order in which `recipe` tries them."""
BY_ROW: Final = (
    f"({ALGORITHM}.loss == 'gspo' || ({ALGORITHM}.loss == 'ppo' && has({ALGORITHM}.ratio) && "
    f"{ALGORITHM}.ratio == 'sequence'))"
)
"""`_by_row` in CEL: whether the clip bounds apply to the mean ratio of a training row."""


def longest_turn(spec: RLTrainingJobSpec) -> int:
    """Maximum tokens that a turn may sample, in training or in validation."""
    training = spec.rollout.sampling.max_tokens
    return training if spec.data.validation is None else max(training, spec.evaluation_max_tokens)


def needed(spec: RLTrainingJobSpec) -> int:
    """Fewest tokens that a context must hold, as in the preflight.

    With the platform's own loop: every turn and one token of a prompt. With an agent that has its own loop:
    one turn, since its prompt may be unknown.
    """
    return longest_turn(spec) * spec.agent.planned_turns + int(spec.agent.is_builtin)


def room(base: str) -> int:
    """Tokens of context that the configuration of the model's family allows."""
    known = recipe(base)
    return NO_LIMIT if known is None else known.family.context_length


def _by_row(spec: RLTrainingJobSpec) -> bool:
    algorithm = spec.algorithm
    return algorithm.loss == "gspo" or (algorithm.loss == "ppo" and algorithm.ratio == "sequence")


def _clip_is_a_ratio(spec: RLTrainingJobSpec) -> bool:
    clip = spec.algorithm.clip
    if clip is None or spec.algorithm.loss != "ppo" or _by_row(spec):
        return True
    return (clip.low is None or clip.low >= CLIP_LOW) and clip.high <= CLIP_HIGH


def _clips_rows(spec: RLTrainingJobSpec) -> bool:
    bounds = spec.algorithm.effective_clip
    return not _by_row(spec) or (bounds is not None and bounds.low >= ROW_LOW and bounds.high <= ROW_HIGH)


def _bounded_or_fresh(spec: RLTrainingJobSpec) -> bool:
    algorithm = spec.algorithm
    if algorithm.loss != "importance_sampling" or algorithm.correction not in CORRECTIONS:
        return True
    lag = 0 if algorithm.correction in CAPPED else algorithm.max_steps_off_policy
    return algorithm.updates_per_batch * (1 + lag) <= UNBOUNDED_UPDATES


def _can_roll_back(spec: RLTrainingJobSpec) -> bool:
    if spec.collapse.policy != "Remediate" or "RollBack" not in spec.collapse.remedies:
        return True
    every = spec.evaluation.every_steps
    kept = spec.checkpoints.keep_best > 0 and every % spec.checkpoints.every_steps == 0
    return spec.data.validation is not None and every > 0 and kept


def _listed(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(cel_literal, names))}]"


GUARD_RAILS: Final = (
    GuardRail(
        f"{ALGORITHM}.loss != 'cispo' || !has({ALGORITHM}.clip) || "
        f"double({ALGORITHM}.clip.high) >= {CISPO_HIGH}",
        "spec.algorithm.clip.high bounds the ratio itself; below 2 cispo has no advantage over ppo: leave "
        "clip out, which means 6, or use ppo",
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
        f"{ALGORITHM}.loss != 'importance_sampling' || "
        f"!({ALGORITHM}.correction in {_listed(CORRECTIONS)}) || "
        f"{ALGORITHM}.updatesPerBatch * ({ALGORITHM}.correction in {_listed(CAPPED)} ? 1 : "
        f"1 + {ALGORITHM}.maxStepsOffPolicy) <= {UNBOUNDED_UPDATES}",
        "spec.algorithm.maxStepsOffPolicy: importance_sampling does not bound the ratio, which grows with "
        "every update between a token and its training. Keep updatesPerBatch x (1 + maxStepsOffPolicy) "
        f"within {UNBOUNDED_UPDATES} (updatesPerBatch with a capped correction), or use ppo",
        _bounded_or_fresh,
    ),
    GuardRail(
        f"{ALGORITHM}.loss != 'ppo' || {BY_ROW} || !has({ALGORITHM}.clip) || "
        f"((!has({ALGORITHM}.clip.low) || double({ALGORITHM}.clip.low) >= {CLIP_LOW}) && "
        f"double({ALGORITHM}.clip.high) <= {CLIP_HIGH})",
        "spec.algorithm.clip holds bounds of the ratio itself, not distances from 1; for the 0.2 of "
        "papers, write low: 0.8 and high: 1.2",
        _clip_is_a_ratio,
    ),
    GuardRail(
        f"!{BY_ROW} || (has({ALGORITHM}.clip) && has({ALGORITHM}.clip.low) && "
        f"double({ALGORITHM}.clip.low) >= {ROW_LOW} && double({ALGORITHM}.clip.high) <= {ROW_HIGH})",
        "spec.algorithm.clip (absent: 0.8 and 1.2) bounds the mean ratio of a training row, which moves far "
        f"less than that of a token. Bounds wider than {ROW_LOW} to {ROW_HIGH} clip almost nothing; GSPO's "
        "bounds are low: 0.9997 and high: 1.0004",
        _clips_rows,
    ),
    GuardRail(
        f"!{BY_ROW} || {ALGORITHM}.correction != 'bypass'",
        "spec.algorithm.correction: bypass uses the servers' log-probabilities as the old ones. Their "
        "rounding alone puts most training rows outside GSPO's narrow bounds; write none, or tis",
        lambda spec: not _by_row(spec) or spec.algorithm.correction != "bypass",
    ),
    GuardRail(
        f"{ALGORITHM}.updatesPerBatch * (1 + {ALGORITHM}.maxStepsOffPolicy) <= {UPDATES}",
        "spec.algorithm.updatesPerBatch x (1 + maxStepsOffPolicy) is how many updates may come between a "
        f"token and its training; published runs stay within {UPDATES}: lower either",
        lambda spec: spec.algorithm.updates_per_batch * (1 + spec.algorithm.max_steps_off_policy) <= UPDATES,
    ),
    GuardRail(
        f"{ALGORITHM}.batchSize * {ALGORITHM}.groupSize >= {EPISODES} * {ALGORITHM}.updatesPerBatch",
        "spec.algorithm.batchSize x groupSize / updatesPerBatch is the number of episodes of one "
        f"optimizer step; with fewer than {EPISODES} its direction is noisy: raise batchSize",
        lambda spec: spec.algorithm.episodes_per_step >= EPISODES * spec.algorithm.updates_per_batch,
    ),
    GuardRail(
        f"{ALGORITHM}.groupSize > 2 || !({ALGORITHM}.advantage.method in {_listed(NORMALIZING)}) || "
        f"{ALGORITHM}.advantage.normalize != 'std'",
        "spec.algorithm.groupSize: with 2 episodes and normalize: std, the advantages do not depend on "
        "how much the rewards differ; raise it, or set spec.algorithm.advantage.normalize: none",
        lambda spec: (
            spec.algorithm.group_size > 2
            or spec.algorithm.advantage.method not in NORMALIZING
            or spec.algorithm.advantage.normalize != "std"
        ),
    ),
    GuardRail(
        f"!{FULL} || {RATE} <= {FULL_RATE}",
        f"spec.optimizer.learningRate is above {FULL_RATE}: full weights need a tenth of LoRA's rate; "
        "published runs on models of billions of weights use 1e-6",
        lambda spec: spec.model.full is None or spec.optimizer.learning_rate <= FULL_RATE,
    ),
    GuardRail(
        f"{FULL} || {RATE} <= {LORA_RATE}",
        f"spec.optimizer.learningRate is above {LORA_RATE}, which is too high for LoRA except on very "
        "small models; 4e-5 is the default",
        lambda spec: spec.model.full is not None or spec.optimizer.learning_rate <= LORA_RATE,
    ),
    GuardRail(
        f"{FULL} || !{BASE}.matches('(?i)gpt-oss') || {RATE} <= {GPT_OSS_RATE}",
        "spec.optimizer.learningRate: gpt-oss needs a lower rate than other families; start with 1e-5",
        lambda spec: (
            spec.model.full is not None
            or re.search("(?i)gpt-oss", spec.model.base) is None
            or spec.optimizer.learning_rate <= GPT_OSS_RATE
        ),
    ),
    GuardRail(
        f"object.spec.optimizer.warmupSteps < object.spec.schedule.maxSteps * {ALGORITHM}.updatesPerBatch",
        "spec.optimizer.warmupSteps: the job ends before it reaches the learning rate; lower it, or raise "
        "spec.schedule.maxSteps",
        lambda spec: spec.optimizer.warmup_steps < spec.schedule.max_steps * spec.algorithm.updates_per_batch,
    ),
    GuardRail(
        "double(object.spec.rollout.sampling.temperature) == 1.0",
        "spec.rollout.sampling.temperature: training optimizes the policy at this temperature, so it must "
        "be served at the same one; 1 is usual",
        lambda spec: spec.rollout.sampling.temperature == 1,
    ),
    GuardRail(
        f"!has({CONTEXT}) || {NEEDED} <= {CONTEXT}",
        "spec.model.contextLength is too short for spec.agent.builtin.maxTurns x "
        "spec.rollout.sampling.maxTokens (or spec.evaluation.sampling.maxTokens, if larger) and a prompt; "
        "the preflight will refuse it: lower one of these",
        lambda spec: spec.model.context_length is None or needed(spec) <= spec.model.context_length,
    ),
    GuardRail(
        f"{NEEDED} <= {ROOM}",
        f"spec.agent.builtin.maxTurns ({TURNS} by default) x spec.rollout.sampling.maxTokens (or "
        "spec.evaluation.sampling.maxTokens, if larger) is more than models of this family take; the "
        "preflight will refuse it: lower either",
        lambda spec: needed(spec) <= room(spec.model.base),
    ),
    GuardRail(
        f"!has({CONTEXT}) || {CONTEXT} <= {ROOM}",
        "spec.model.contextLength is above what the configuration of this family's models allows; the "
        "preflight will refuse it: lower it, or leave it out",
        lambda spec: spec.model.context_length is None or spec.model.context_length <= room(spec.model.base),
    ),
    GuardRail(
        f"{COLLAPSE}.policy != 'Remediate' || object.spec.schedule.maxSteps > {WATCH}",
        f"spec.collapse.policy: Remediate changes nothing in the last {WATCH} steps, because it watches a "
        f"change for that long; raise spec.schedule.maxSteps above {WATCH}, or use Pause",
        lambda spec: spec.collapse.policy != "Remediate" or spec.schedule.max_steps > WATCH,
    ),
    GuardRail(
        f"{COLLAPSE}.policy != 'Remediate' || !('RollBack' in {COLLAPSE}.remedies) || "
        f"(has(object.spec.data.validation) && {EVERY} > 0 && object.spec.checkpoints.keepBest > 0 && "
        f"{EVERY} % object.spec.checkpoints.everySteps == 0)",
        "spec.collapse.remedies: RollBack needs validated checkpoints; set spec.data.validation, evaluation."
        "everySteps to a multiple of checkpoints.everySteps, and checkpoints.keepBest of 1 or more",
        _can_roll_back,
    ),
)


def warnings(spec: RLTrainingJobSpec) -> list[str]:
    """Warnings about what seems unwise in a job, each with what to write instead."""
    return [rail.message for rail in GUARD_RAILS if not rail.holds(spec)]


def policy() -> str:
    """The validations of the chart's ValidatingAdmissionPolicy, as YAML."""
    head = "# Generated by `make crds` from headway_api.recipes; do not edit.\n"
    entries = [rail.validation() for rail in GUARD_RAILS]
    return head + yaml.safe_dump(entries, sort_keys=False, width=110)


def fragment(spec: RLTrainingJobSpec) -> dict[str, Any]:
    """Fields to write into a job: the recipe for its model, with LoRA or full weights as in the job.

    If the job's turns do not fit the context, the fields also lower the number of turns or the tokens of a
    turn. Everything else stays unchanged.
    """
    known = recipe(spec.model.base)
    start = OTHER if known is None else known.start
    full = spec.model.full is not None
    model: dict[str, Any] = {}
    if full:
        model["full"] = {}
    elif spec.model.warm_start is None:  # an adapter to start from keeps its own rank and alpha
        model["lora"] = {"rank": RANK, "alpha": start.alpha}
    asked, maximum = spec.model.context_length, room(spec.model.base)
    unsaid = asked is None and known is not None and not known.family.says_context
    if unsaid or (asked or 0) > maximum:
        model["contextLength"] = maximum
    found: dict[str, Any] = {"model": model} if model else {}
    found["optimizer"] = {"learningRate": start.full if full else start.lora}
    return found | _fitting(spec, min(asked or maximum, maximum))


def _fitting(spec: RLTrainingJobSpec, context: int) -> dict[str, Any]:
    """Turns, and tokens of a turn, that leave a fifth of the context to the prompt and to tool results.

    It halves tokens until they are below 1024, then turns. With one turn left, it halves tokens again.
    """
    turns, tokens = spec.agent.planned_turns, longest_turn(spec)
    while turns * tokens * 5 > context * 4:
        if tokens < 1024 and turns > 1:
            turns //= 2
        else:
            tokens //= 2
    found: dict[str, Any] = {}
    if turns < spec.agent.planned_turns:
        found["agent"] = {"builtin": {"maxTurns": turns}}
    if tokens < spec.rollout.sampling.max_tokens:
        found["rollout"] = {"sampling": {"maxTokens": tokens}}
    if tokens < (spec.evaluation.sampling.max_tokens or 0):
        found["evaluation"] = {"sampling": {"maxTokens": tokens}}
    return found


def advice(job: RLTrainingJob) -> str:
    """Everything known about a job, for people to read."""
    spec, known = job.spec, recipe(job.spec.model.base)
    start = OTHER if known is None else known.start
    name = "no family with a recipe" if known is None else known.family.name
    way, source = (
        ("LoRA", start.lora_source) if spec.model.full is None else ("full weights", start.full_source)
    )
    lines = [f"{spec.model.base} ({name}), {way}: {source}"]
    lines += [f"  {line}" for line in yaml.safe_dump(fragment(spec), sort_keys=False).splitlines()]
    return "\n".join([*lines, *(f"Warning: {message}" for message in warnings(spec))])


def main(arguments: list[str] | None = None) -> int:
    """Print what is known about a job's model and what seems unwise in it, or write the chart's part."""
    parser = argparse.ArgumentParser(prog="python -m headway_api.recipes", description=main.__doc__)
    parser.add_argument("job", type=Path, nargs="?", help="an RLTrainingJob as YAML")
    parser.add_argument("--policy", type=Path, help="file of the chart to write")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a file differs from what would be generated",
    )
    options = parser.parse_args(arguments)
    if options.job is not None:
        try:
            print(advice(RLTrainingJob.model_validate(yaml.safe_load(options.job.read_text()))))
        except ValidationError as invalid:
            print("\n".join(mistakes(invalid, RLTrainingJob)), file=sys.stderr)
            return 1
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            print(f"{options.job} cannot be read as YAML: {error}", file=sys.stderr)
            return 1
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
