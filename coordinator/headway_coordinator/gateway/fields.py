"""Types of fields that several protocols share, and other engines' names for these fields. Pure.

A client written for Ollama, llama.cpp, TGI, SGLang or Mistral sends some fields under other names. If such a
field means exactly the same as one of OpenAI's, it is applied. All others are in `unapplied.py`.
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
"""A temperature or top_p. The job's own value is used instead, but a value out of range is still refused."""
Seed = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
"""Not applied: the job sets each turn's seed. With a seed from the agent, all episodes of a group could be
the same."""
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=bounds.NAME)]],
    Field(max_length=STOPS, fail_fast=True),
]
Stop = Annotated[str, Field(max_length=bounds.NAME)] | Stops
"""A stop string, or several. The turn ends once the model has written one; the answer's text omits it."""


class Options(BaseModel):
    """Ollama's `options`: parameters that other engines take at the top of the request."""

    model_config = ConfigDict(extra="allow")

    temperature: Number | None = None
    top_p: Number | None = None
    seed: Seed | None = None
    num_predict: Tokens | Literal[-1, -2] | None = None
    stop: Stop | None = None


class OtherNames(BaseModel):
    """Fields of other engines that mean the same as one of OpenAI's."""

    max_new_tokens: Tokens | None = None
    """`max_tokens`, as TGI and SGLang write it."""
    n_predict: Tokens | Literal[-1] | None = None
    """`max_tokens`, as llama.cpp writes it; -1: only the job's limit applies."""
    num_predict: Tokens | Literal[-1, -2] | None = None
    """`max_tokens`, as Ollama writes it; below 0: only the job's limit applies."""
    random_seed: Seed | None = None
    """`seed`, as Mistral writes it."""
    stop_words: Stop | None = None
    """`stop`, as Qwen's and NVIDIA's servers write it."""
    options: Options | None = None
    """Further parameters, as Ollama writes them."""


def least_bound(asked: OtherNames, *own: int | None) -> int | None:
    """The smallest of the request's limits on the turn's tokens; None if it sets no limit."""
    options = asked.options or Options()
    given = (*own, asked.max_new_tokens, asked.n_predict, asked.num_predict, options.num_predict)
    return min((bound for bound in given if bound is not None and bound > 0), default=None)


def stops(given: Mapping[str, str | Sequence[str] | None]) -> dict[str, str]:
    """Stop string -> the first field that contains it. Empty strings are dropped.

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
    """Stop string -> the first field that contains it, over all names of the field `stop`.

    Raises:
        GatewayError: there are too many strings.
    """
    more = asked.options.stop if asked.options else None
    found = stops({"stop": own, "stop_words": asked.stop_words, "options.stop": more})
    if len(found) > STOPS:
        name = next(iter(found.values()))
        raise bad(name, f"has {len(found)} strings with those of its other names; send at most {STOPS}")
    return found


def ignored_options(asked: OtherNames, *, lenient: bool) -> tuple[str, ...]:
    """The names of the fields in `options` that are ignored.

    Raises:
        GatewayError: 400 `unsupported_parameter` for the first field that would change what is sampled, if
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
