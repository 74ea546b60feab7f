"""OpenAI's completions: the model continues a text, or token ids. Pure.

They serve models without a chat template, and agents that write their own prompts. A turn is recorded like
any other. `texts.py` decides when several such turns are one training row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, StrictBool, StrictInt, ValidationError

from headway_api import bounds
from headway_coordinator.gateway import formats
from headway_coordinator.gateway.asks import Ask, Completion, FieldNames
from headway_coordinator.gateway.blocks import unread
from headway_coordinator.gateway.fields import (
    Model,
    Number,
    Options,
    OtherNames,
    Seed,
    Stop,
    Tokens,
    every_stop,
    ignored_options,
    least_bound,
)
from headway_coordinator.gateway.neutral import Table
from headway_coordinator.gateway.openai import (
    MODEL,
    StreamOptions,
    event,
    usage,
)
from headway_coordinator.gateway.refusals import GatewayError, bad, refuse
from headway_coordinator.gateway.spellings import FormatOptions
from headway_coordinator.gateway.unapplied import (
    MAX_TOKENS_HINT,
    STOP,
    WHY,
    beside,
    listed,
    unapplied,
)

Token = Annotated[StrictInt, Field(ge=0, le=10**9)]
Ids = Annotated[list[Token], Field(min_length=1, max_length=bounds.PROMPT_VALUES, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]


class CompletionBody(FormatOptions, OtherNames):
    """A request to continue a text."""

    model_config = ConfigDict(extra="allow")

    model: Model = MODEL
    prompt: (
        Text
        | Ids
        | Annotated[list[Text], Field(min_length=1, max_length=1, fail_fast=True)]
        | Annotated[list[Ids], Field(min_length=1, max_length=1, fail_fast=True)]
    )
    """Text or token ids, or a list with one prompt in either form."""
    max_tokens: Tokens | None = None
    """If it is missing, the job's limit applies. OpenAI's default of 16 would be too short for a turn."""
    temperature: Number | None = None
    top_p: Number | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    """Any number asks for the log-probability of each sampled token. The answer never shows other tokens."""
    seed: Seed | None = None


WITHOUT_EFFECT: Final[Table] = beside(
    {"suffix": (None, ""), "prompt_embeds": (None,), "add_special_tokens": (None, True)},
    CompletionBody.model_fields,
)
"""Field that is not applied -> the values at which it would change nothing."""
PROMPT_FIELDS: Final = (
    *("messages", "system", "instructions", "input", "inputs", "contents"),
    *("systemInstruction", "system_instruction"),
)
INSTEAD: Final[dict[str, str]] = {
    **WHY,
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens"), MAX_TOKENS_HINT),
    **dict.fromkeys(PROMPT_FIELDS, "write it into prompt"),
    "stop_sequences": STOP,
}
"""Field -> why it is not applied, and what to do instead."""


@dataclass(frozen=True)
class CompletionRequest:
    """A parsed completion request: a `dialect.TurnRequest`."""

    ask: Ask
    model: str
    stream: bool
    usage_in_stream: bool
    ignored: tuple[str, ...] = ()

    def whole(self, found: Completion, trajectory_id: str) -> dict[str, Any]:
        """The answer without streaming."""
        head = self._head(found, trajectory_id)
        return head | {"choices": [_choice(found, found.finish_reason)], "usage": usage(found)}

    def events(self, found: Completion, trajectory_id: str) -> Iterator[bytes]:
        """The answer as server-sent events."""
        head = self._head(found, trajectory_id)
        more = {"usage": None} if self.usage_in_stream else {}
        yield event(head | {"choices": [_choice(found, found.finish_reason)]} | more)
        if self.usage_in_stream:
            yield event(head | {"choices": [], "usage": usage(found)})
        yield b"data: [DONE]\n\n"

    def failed(self, refusal: GatewayError) -> bytes:
        """The event that ends a stream with an error."""
        return event(refusal.body)

    def _head(self, found: Completion, trajectory_id: str) -> dict[str, Any]:
        return {
            "id": f"cmpl-{trajectory_id}-{found.number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": f"policy-{found.turn.policy_version}",
        }


def read(body: object, *, lenient: bool = False, large: bool = False) -> CompletionRequest:
    """Check a request's JSON, as `openai.read` does. `large` has no effect: there is no list of messages.

    Raises:
        GatewayError: names the field to change.
    """
    if not isinstance(body, dict):
        raise bad("body", "must be a JSON object")
    ignored = unapplied(body, WITHOUT_EFFECT, lenient=lenient, why=INSTEAD)
    if (
        isinstance(body.get("prompt"), list)
        and len(body["prompt"]) > 1
        and isinstance(body["prompt"][0], str | list)
    ):
        raise bad("prompt", "has several prompts; send a request for each")
    try:
        asked = CompletionBody.model_validate(body)
    except ValidationError as error:
        refuse(error)
    nested = unread(asked, lenient=lenient)
    options = asked.options or Options()
    wanted = formats.of_chat(body, asked.response_format, lenient=lenient)
    json_answer = formats.chosen_schema(wanted, False, lenient)
    stop = every_stop(asked, asked.stop)
    prompt: Any = asked.prompt
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        [prompt] = prompt
    text = prompt if isinstance(prompt, str) else tuple(prompt)
    ask = Ask(
        messages=[{"role": "user", "content": text}] if isinstance(text, str) else [],
        max_tokens=least_bound(asked, asked.max_tokens),
        stop=tuple(stop),
        temperature=options.temperature if asked.temperature is None else asked.temperature,
        top_p=options.top_p if asked.top_p is None else asked.top_p,
        logprobs=asked.logprobs is not None,
        schema=json_answer.schema,
        names=FieldNames(conversation="prompt", schema=json_answer.name, stops=stop),
        text=text,
    )
    usage_in_stream = bool((asked.stream_options or StreamOptions()).include_usage)
    ignored += (*nested, *json_answer.ignored, *ignored_options(asked, lenient=lenient))
    ignored += listed(body, CompletionBody.model_fields, WITHOUT_EFFECT)
    ignored += ("logprobs",) if asked.logprobs else ()
    return CompletionRequest(ask, asked.model, bool(asked.stream), usage_in_stream, ignored)


def _choice(found: Completion, finish: str) -> dict[str, Any]:
    return {
        "index": 0,
        "text": found.message["content"],
        "finish_reason": finish,
        "stop_reason": found.stopped,
        "logprobs": _logprobs(found),
    }


def _logprobs(found: Completion) -> dict[str, Any] | None:
    """Log-probabilities of the sampled tokens, including the token that ends the text.

    None if the request does not ask for them.
    """
    if not found.scored:
        return None
    offsets, at = [], 0
    for one in found.scored:
        offsets.append(at)
        at += len(one.text)
    return {
        "tokens": [one.text for one in found.scored],
        "token_logprobs": [one.logprob for one in found.scored],
        "top_logprobs": None,
        "text_offset": offsets,
    }
