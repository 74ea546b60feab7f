"""Types of fields that several protocols have, and other engines' names of fields that are applied. Pure.

A client written for Ollama, llama.cpp, TGI, SGLang or Mistral sends some fields by other names. If a name
means exactly what a field here means, it is applied. All others are in `unapplied.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from headway_api import bounds
from headway_coordinator.gateway.neutral import bounded, neutral, shown
from headway_coordinator.gateway.refusals import UNSUPPORTED, bad
from headway_coordinator.gateway.unapplied import SAMPLED, WHY, WITHOUT_EFFECT

STOPS = 16
"""The most strings that may end a turn."""
Model = Annotated[str, Field(max_length=bounds.NAME)]
"""A model's name. Every part of a streamed answer repeats it."""
Tokens = Annotated[StrictInt, Field(ge=1, le=10**9)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=100)]
"""The job's own value is used instead, but the agent should learn that its value is not a number in range."""
Seed = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
"""Not applied: each turn's seed is the job's. With the agent's seed, all episodes of a group would be the
same."""
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=bounds.NAME)]],
    Field(max_length=STOPS, fail_fast=True),
]
Stop = Annotated[str, Field(max_length=bounds.NAME)] | Stops
"""The turn ends once the model has written it. The answer's text omits it."""


class Options(BaseModel):
    """Ollama's `options`: parameters that other engines take beside the messages."""

    model_config = ConfigDict(extra="allow")

    temperature: Number | None = None
    top_p: Number | None = None
    seed: Seed | None = None
    num_predict: Tokens | Literal[-1, -2] | None = None
    stop: Stop | None = None


class OtherNames(BaseModel):
    """Fields that mean the same as one of OpenAI's."""

    max_new_tokens: Tokens | None = None
    """`max_tokens`, as TGI and SGLang write it."""
    n_predict: Tokens | Literal[-1] | None = None
    """`max_tokens`, as llama.cpp writes it; -1: the job's bound alone."""
    num_predict: Tokens | Literal[-1, -2] | None = None
    """`max_tokens`, as Ollama writes it; below 0: the job's bound alone."""
    random_seed: Seed | None = None
    """`seed`, as Mistral writes it."""
    stop_words: Stop | None = None
    """`stop`, as Qwen's and NVIDIA's servers write it."""
    options: Options | None = None
    """Ollama's."""


def least_bound(asked: OtherNames, *own: int | None) -> int | None:
    """The least of all bounds on the turn's tokens; None: there is none."""
    options = asked.options or Options()
    given = (*own, asked.max_new_tokens, asked.n_predict, asked.num_predict, options.num_predict)
    return min((bound for bound in given if bound is not None and bound > 0), default=None)


def stops(given: Mapping[str, str | Sequence[str] | None]) -> dict[str, str]:
    """The strings that end a turn, each once, and the first field that has each. Empty ones are dropped.

    Args:
        given: field -> its strings.
    """
    found: dict[str, str] = {}
    for name, some in given.items():
        for one in [some] if isinstance(some, str) else some or ():
            if one:
                found.setdefault(one, name)
    return found


def every_stop(asked: OtherNames, own: str | Sequence[str] | None) -> dict[str, str]:
    """The strings that end a turn, by all names, and the first field that has each.

    Raises:
        GatewayError: there are too many.
    """
    more = asked.options.stop if asked.options else None
    found = stops({"stop": own, "stop_words": asked.stop_words, "options.stop": more})
    if len(found) > STOPS:
        name = next(iter(found.values()))
        raise bad(name, f"has {len(found)} strings with those of its other names; send at most {STOPS}")
    return found


def left(asked: OtherNames, *, lenient: bool) -> tuple[str, ...]:
    """The `options` that are ignored, by name.

    Raises:
        GatewayError: 400 `unsupported_parameter`, for the first that would change what is sampled, if
            `lenient` is false.
    """
    if asked.options is None:
        return ()
    more = asked.options.model_extra or {}
    refused = [
        name for name in more if name in WITHOUT_EFFECT and not neutral(more[name], WITHOUT_EFFECT[name])
    ]
    if refused and not lenient:
        name = refused[0]
        message = f"{shown(more[name])} is not applied: {WHY.get(name, SAMPLED)}"
        raise bad(f"options.{name}", message, UNSUPPORTED)

    def found() -> Iterator[str]:
        yield from refused
        if asked.options is not None and asked.options.seed is not None:
            yield "seed"
        yield from (name for name, value in more.items() if name not in WITHOUT_EFFECT and value is not None)

    return bounded(f"options.{name[:60]}" for name in found())
