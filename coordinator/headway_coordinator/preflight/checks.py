"""The static checks. Each is a function that returns what it found, or raises a `JobError` with the fix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from headway_analysis.measures.candidate import ALL
from headway_api import lora_targets, rope
from headway_api.base_model import read_config
from headway_api.exits import JobError
from headway_api.families import recipe
from headway_api.opening import opening
from headway_api.rows import Row, check_column, tasks_of
from headway_api.sandbox_api import FinishReply, ResetReply
from headway_api.spec.agent import AgentSpec
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.model import Lora
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.faults import InfraError
from headway_coordinator.finish_reply import check_reward, check_sizes
from headway_coordinator.trajectory.calls import Message, Tool
from headway_coordinator.trajectory.render import Renderer

CONTEXT_LENGTH: Final = "spec.model.contextLength"


def batch(rows: int, spec: RLTrainingJobSpec) -> str:
    """Check that the data fills at least one batch."""
    size, epochs = spec.algorithm.batch_size, spec.schedule.max_epochs
    if rows * epochs < size:
        raise JobError(
            "TooFewRows",
            f"{rows} rows in {epochs} epochs do not fill one batch of {size}; lower batchSize, raise "
            "schedule.maxEpochs, or add rows",
            field="spec.algorithm.batchSize",
        )
    return f"{rows} rows, {rows * epochs // size} steps of {size} in {epochs} epochs"


def tasks(rows: Sequence[Row], column: str, block: str) -> list[str]:
    """The task of each row of `block`, which is a block of spec.data.

    Raises:
        JobError: `ColumnMissing`, `TaskNameTaken`.
    """
    check_column(rows, column, f"{block}.taskColumn")
    found = tasks_of(rows, column) or []
    task_names(found, column, block)
    return found


def task_names(found: Collection[str], column: str, block: str) -> None:
    """Check that no task has the name `ALL`, which means every row in results.

    Raises:
        JobError: `TaskNameTaken`.
    """
    if ALL in found:
        text = f"rows of {block} have the task {ALL} in column {column}, which means every row; rename it"
        raise JobError("TaskNameTaken", text, field=f"{block}.taskColumn")


def task_weights(named: Sequence[str], weights: Mapping[str, float]) -> str:
    """Check `spec.data.taskWeights`. Returns a message with each training task's share.

    Args:
        named: the task of each training row.
        weights: task -> weight. A task without a weight has the weight 1.

    Raises:
        JobError: `TaskUnknown`: a weighted task has no row, or every task has the weight 0.
    """
    known = set(named)
    field = "spec.data.taskWeights"
    if unknown := sorted(weights.keys() - known):
        some = ", ".join(sorted(known)[:8])
        text = f"no training row has the task {', '.join(unknown)}; tasks are {some}: name one of them"
        raise JobError("TaskUnknown", text, field=field)
    given = {task: weights.get(task, 1.0) for task in sorted(known)}
    if not any(given.values()):
        text = "every task has the weight 0: give one of them a weight above 0"
        raise JobError("TaskUnknown", text, field=field)
    total = sum(given.values())
    return "shares: " + ", ".join(f"{task} {weight / total:.1%}" for task, weight in given.items())


def context_length(folder: Path, base: str, asked: int | None, field: str = CONTEXT_LENGTH) -> int:
    """The most tokens of an episode: `asked` if it is not None, else the model's own limit.

    If config.json has no limit, the known limit of the model's family applies. vLLM would refuse a length
    that is too long too, but only after GPUs were requested.

    Raises:
        JobError: `ContextLengthUnknown`: neither `asked` nor config.json has a length.
            `ContextLengthTooLong`: the model's limit is lower. `ModelIncomplete` or `ModelNotLoadable`:
            config.json is missing or cannot be read.
    """
    limit, own = _model_limits(folder)
    if asked is None and limit is None:
        raise JobError(
            "ContextLengthUnknown",
            "the model's config.json has no max_position_embeddings; say how many tokens an episode may have",
            field=field,
        )
    known = recipe(base)
    maximum = limit or (known.family.context_length if known is not None else None)
    if asked is not None and maximum is not None and asked > maximum:
        raise JobError(
            "ContextLengthTooLong",
            f"{asked} is more than the model's own limit of {maximum}; lower it",
            field=field,
        )
    return asked or own or 0


def _model_limits(folder: Path) -> tuple[int | None, int | None]:
    """The most tokens that config.json allows, and the context length that a server has by default.

    Both are None if config.json has no limit.
    """
    path = folder / "config.json"
    if not path.exists():
        raise JobError(
            "ModelIncomplete",
            "the base model has no config.json; upload the whole Hugging Face folder",
            field="spec.model.base",
        )
    try:
        config = read_config(path)
        limit = (config.get("text_config") or config).get("max_position_embeddings")
        return (int(limit), rope.own_length(config, int(limit))) if limit else (None, None)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise JobError(
            "ModelNotLoadable",
            f"the base model's config.json is not a model's configuration ({error}); upload the whole "
            "Hugging Face folder again",
            field="spec.model.base",
        ) from error


def lora_modules(lora: Lora, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Paths of the linear modules that may get an adapter, from the shapes of the base model's tensors.

    Raises:
        JobError: `LoraTargetsUnusable`: an entry of `lora.targets` names no such module. The message has
            the names that work.
    """
    modules = lora_targets.adaptable(shapes)
    if unknown := lora_targets.unmatched(lora.targets, modules):
        raise JobError(
            "LoraTargetsUnusable",
            f"{', '.join(unknown)}: the base model has no linear module of that name that may get an "
            "adapter. Embeddings, the output head and experts get none; name some of "
            f"{lora_targets.ends(modules)}, or leave targets out for all of them",
            field=lora_targets.FIELD,
        )
    return modules


def renderer(chosen: Renderer) -> str:
    """The message that says which renderer converts messages to tokens."""
    return f"messages are rendered by {chosen.name}, {len(chosen.stop_token_ids)} stop tokens"


def lowest_report(spec: RLTrainingJobSpec | RLEvalJobSpec) -> list[float] | None:
    """The reward to report for an agent that has not played: the lowest, in a list of one.

    None if the agent does not report its own reward.
    """
    agent = spec.agent.http
    return [spec.reward.range[0]] if agent is not None and agent.reports_reward else None


def reward(reply: FinishReply, spec: RLTrainingJobSpec | RLEvalJobSpec) -> str:
    """Check that the reward of an episode without a single turn is a number in range."""
    low, high = spec.reward.range
    try:
        check_reward(reply, (low, high), turns=0)
    except InfraError as fault:
        raise JobError(
            "RewardOutOfRange",
            f"{fault}; correct the environment's reward, or the range",
            field="spec.reward.range",
        ) from fault
    try:
        check_sizes(reply)
    except InfraError as fault:
        raise JobError("RewardOutOfRange", str(fault), field="spec.environment.entrypoint") from fault
    return f"an episode without an answer has reward {reply.reward:g} and score {reply.score:g}"


def context(first: ResetReply, chosen: Renderer, length: int, spec: RLTrainingJobSpec) -> str:
    """Check that the prompt, the tool specs, and all turns at maximum length fit the context.

    For an agent with its own loop, only one turn is counted, and the agent's own prompt is unknown.
    """
    maximum, field = spec.rollout.sampling.max_tokens, "spec.rollout.sampling.maxTokens"
    held_out = spec.data.validation is not None or spec.data.test is not None
    if held_out and spec.evaluation_max_tokens > maximum:
        maximum, field = spec.evaluation_max_tokens, "spec.evaluation.sampling.maxTokens"
    return fits(first, chosen, length, spec.agent, maximum, field)


def _tokens(chosen: Renderer, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """The number of tokens in an episode's prompt."""
    try:
        return len(chosen.render(messages, tools))
    except Exception as error:  # the model's author wrote the template, which may raise anything
        raise JobError(
            "ChatTemplateUnusable",
            "the base model's chat template does not accept the first messages of an episode "
            f"({type(error).__name__}: {error}); correct chat_template.jinja, or begin with messages that "
            "it accepts",
            field="spec.model.base",
        ) from error


def fits(
    first: ResetReply,
    chosen: Renderer,
    length: int,
    agent: AgentSpec,
    maximum: int,
    field: str,
    length_field: str = CONTEXT_LENGTH,
) -> str:
    """Check that the prompt, the tool specs, and turns of `maximum` tokens each fit the context.

    Args:
        first: how the environment begins an episode.
        chosen: the model's renderer.
        length: the most tokens of the context.
        agent: says how many turns are counted.
        maximum: the most tokens of a turn.
        field: the spec's field that sets `maximum`.
        length_field: the spec's field that sets `length`.

    Raises:
        JobError: `ContextTooShort`. `ChatTemplateUnusable`: the template does not accept such a prompt.
    """
    turns = agent.planned_turns
    messages = opening(first.messages, agent.effective_builtin.system_prompt)
    prompt = _tokens(chosen, messages, first.tools) if messages else 0
    need = prompt + turns * maximum
    sums = f"{prompt} prompt and tool tokens + {turns} turns x {maximum} tokens = {need}"
    if need > length:
        longest_turn = (length - prompt) // turns
        also = ", or spec.agent.builtin.maxTurns" if agent.is_builtin else ""
        remedy = f"lower {field} to {longest_turn}{also}"
        if longest_turn < 1:
            field, remedy = length_field, f"raise {length_field}, or shorten the prompt"
        raise JobError(
            "ContextTooShort",
            f"{sums}, but the context holds {length}, tool results not counted; {remedy}",
            field=field,
        )
    return f"{sums}, of {length}"
