"""Reads how much a model should think, in every form that clients use. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from headway_coordinator.gateway.blocks import LEAVE_OUT, Block, Unread
from headway_coordinator.gateway.formats import ResponseFormat
from headway_coordinator.gateway.neutral import bounded
from headway_coordinator.gateway.refusals import UNSUPPORTED, bad
from headway_coordinator.gateway.unapplied import BUDGET

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def level(effort: str | None) -> str | None:
    """An effort in the words of chat templates, which have one word, `xhigh`, for the two highest."""
    return "xhigh" if effort == "max" else effort


class FormatOptions(BaseModel):
    """Constraints on an answer, as OpenAI, vLLM, SGLang and Ollama write them: see `formats.py`."""

    response_format: ResponseFormat | None = None
    """With a schema, the sampler masks tokens, so the turn is context and is not trained."""
    guided_json: dict[str, Any] | str | None = None
    json_schema: dict[str, Any] | str | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_decoding: dict[str, Any] | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    """Any JSON object, or a schema, as Ollama writes it."""


class Switch(Block):
    """The value of `thinking` in requests for DeepSeek and GLM."""

    UNREAD = Unread(
        refused={"budget_tokens": (None,), "clear_thinking": (None,)},
        why={
            "budget_tokens": BUDGET,
            "clear_thinking": f"the chat template says which reasoning a prompt keeps; {LEAVE_OUT}",
        },
    )

    type: Literal["enabled", "disabled"]


class TemplateVariables(BaseModel):
    """The variables of vLLM's `chat_template_kwargs` that say how much the model thinks."""

    model_config = ConfigDict(extra="allow")

    enable_thinking: StrictBool | None = None
    thinking: StrictBool | None = None
    reasoning_effort: Effort | None = None


class ReasoningOptions(BaseModel):
    """How much the model should think, as OpenAI, Qwen, DeepSeek, Ollama and vLLM write it."""

    reasoning_effort: Effort | None = None
    """Applied if the model's chat template renders a different prompt for it."""
    enable_thinking: StrictBool | None = None
    thinking: Annotated[StrictBool | Switch, Field(union_mode="left_to_right")] | None = None
    think: (
        Annotated[StrictBool | Literal["low", "medium", "high"], Field(union_mode="left_to_right")] | None
    ) = None
    """A switch or a level, as Ollama writes it."""
    chat_template_kwargs: TemplateVariables | None = None


LEVELS: Final = 'write reasoning_effort: "none", "low", "medium" or "high"'


def effort(asked: ReasoningOptions, *, lenient: bool) -> tuple[str | None, str, tuple[str, ...]]:
    """The effort that a request asks for, the field that sets it, and the fields that are ignored.

    Raises:
        GatewayError: one field turns thinking off and another turns it on. Or a template variable is not
            applied, and `lenient` is false.
    """
    if not asked.model_fields_set & ReasoningOptions.model_fields.keys():
        return None, "reasoning_effort", ()
    given = asked.chat_template_kwargs or TemplateVariables()
    others = bounded(
        f"chat_template_kwargs.{name[:60]}"
        for name, value in (given.model_extra or {}).items()
        if value is not None
    )
    if others and not lenient:
        message = f"is not applied: every turn of a job has the same variables except for thinking; {LEVELS}"
        raise bad(others[0], message, UNSUPPORTED)
    switch = asked.thinking.type == "enabled" if isinstance(asked.thinking, Switch) else asked.thinking
    requested = {
        "reasoning_effort": level(asked.reasoning_effort),
        "chat_template_kwargs.reasoning_effort": level(given.reasoning_effort),
        "enable_thinking": _switched(asked.enable_thinking),
        "thinking": _switched(switch),
        "think": asked.think if isinstance(asked.think, str) else _switched(asked.think),
        "chat_template_kwargs.enable_thinking": _switched(given.enable_thinking),
        "chat_template_kwargs.thinking": _switched(given.thinking),
    }
    sent = [(name, value) for name, value in requested.items() if value is not None]
    if not sent:
        return None, "reasoning_effort", others
    name, found = sent[0]
    for other, value in sent[1:]:
        if value != found and {value, found} & {"none"}:
            raise bad(other, f"says {value!r}, and {name} says {found!r}; send one of them")
    return found, name, others


def _switched(given: bool | None) -> str | None:
    return None if given is None else "on" if given else "none"
