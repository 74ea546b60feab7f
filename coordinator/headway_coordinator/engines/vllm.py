"""One call to vLLM's `/inference/v1/generate`: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from headway_api import bounds
from headway_api.bounds import shortened
from headway_api.model_names import BASE_MODEL, POLICY, salt_of
from headway_api.records import PolicyVersion, VersionSpan
from headway_coordinator.faults import InfraError
from headway_coordinator.http import AnswerBounds, PeerUnreachableError, UpstreamError, call

MISSING_LOGPROB = -9999.0
"""vLLM writes this if it has no log-probability."""
TOKEN_BYTES, TOKEN_VALUES = 1024, 32
"""The most bytes and values of one sampled token in an answer. A token with its log-probability usually has
some 100 bytes."""
ROUNDING = 1e-3
"""Rounding may raise a log-probability above 0 by at most this."""
MAX_TOKENS = 10**9
"""The largest count in an answer."""


@dataclass(frozen=True)
class Request:
    """What to sample."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop_token_ids: Sequence[int]
    stop: Sequence[str] = ()
    """Strings that also end the turn. The token that completes such a string is the last one."""
    schema: str | None = None
    """JSON schema. Tokens that break it are hidden from the sampler, so the log-probabilities cover only the
    others."""


@dataclass(frozen=True)
class Sampled:
    """The sampled tokens."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[VersionSpan]
    finish_reason: str
    """`stop` (the model ended its turn) or `length`."""
    cached_tokens: int
    """Prompt tokens that the engine found in its prefix cache; 0 if it does not report them."""


class SchemaRefusedError(Exception):
    """The server does not take the schema."""


class ServerLostError(Exception):
    """The server cannot serve this request now; another one may."""


async def generate(
    http: aiohttp.ClientSession,
    url: str,
    model: str,
    version: PolicyVersion,
    request: Request,
    timeout: float,
    *,
    key: str | None = None,
    slot: str = POLICY,
    static: bool | None = None,
) -> Sampled:
    """Sample one continuation from the server at `url`, whose `model` holds `version`.

    Args:
        key: the key that the server's port requires.
        slot: the server's weight slot for the model.
        static: whether nothing can replace these weights during the request. None: true for an adapter, false
            for the base model's name.

    Raises:
        ServerLostError: the server is unreachable, fails, lacks the model, or aborted the request.
        SchemaRefusedError: the server refuses a request that has a schema.
        InfraError: the server refuses the request itself, or gives an answer that cannot be trusted.
    """
    body = _body(model, salt_of(version, slot), request)
    try:
        answer = await call(
            http,
            "POST",
            f"{url}/inference/v1/generate",
            timeout=timeout,
            token=key,
            body=body,
            within=largest(request.max_tokens),
        )
    except PeerUnreachableError as error:
        raise ServerLostError(str(error)) from error
    except UpstreamError as error:
        if error.status >= 500 or error.status in (404, 429):
            raise ServerLostError(str(error)) from error
        if error.status == 400 and request.schema is not None:
            raise SchemaRefusedError(str(error)) from error
        raise InfraError(str(error)) from error
    try:
        return read(answer, version, static=model != BASE_MODEL if static is None else static)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        words = shortened(str(error), 200)
        raise InfraError(
            f"{url} gave an answer that cannot be read: {type(error).__name__}: {words}"
        ) from error


def largest(tokens: int) -> AnswerBounds:
    """The bounds of an answer with at most this many tokens."""
    return AnswerBounds(
        size=bounds.MIB + TOKEN_BYTES * tokens, values=bounds.ANSWER_VALUES + TOKEN_VALUES * tokens
    )


def _body(model: str, salt: str, request: Request) -> dict[str, Any]:
    return {
        "model": model,
        # With the version in the salt, the prefix cache never finds entries of another version, even if it
        # was not reset when the weights changed.
        "cache_salt": salt,
        "token_ids": list(request.prompt),
        "sampling_params": {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "logprobs": 0,
            "stop_token_ids": list(request.stop_token_ids),
            "skip_special_tokens": False,
            "detokenize": bool(request.stop),
        }
        | ({"stop": list(request.stop)} if request.stop else {})
        | ({} if request.schema is None else {"structured_outputs": {"json": request.schema}}),
    }


def read(answer: dict[str, Any], version: PolicyVersion, *, static: bool = True) -> Sampled:
    """Check an answer: as many log-probabilities as tokens, each one finite and of the token itself.

    Raises:
        ServerLostError: the server aborted the request, or its weights are not static and did not come from
            Headway.
        InfraError: evidence for a sampled token is missing.
    """
    choice = answer["choices"][0]
    if choice["finish_reason"] not in ("stop", "length"):
        raise ServerLostError(f"the server ended the request with {_shown(choice['finish_reason'])}")
    tokens = [_whole(token) for token in choice.get("token_ids") or []]
    content = (choice.get("logprobs") or {}).get("content") or []
    if not tokens or len(content) != len(tokens):
        raise InfraError(f"the server answered {len(tokens)} tokens with {len(content)} log-probabilities")
    logprobs = [_logprob(entry, token) for entry, token in zip(content, tokens, strict=True)]
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return Sampled(
        tokens=tokens,
        logprobs=logprobs,
        versions=_versions(choice.get("weight_versions"), len(tokens), version, static),
        finish_reason=choice["finish_reason"],
        cached_tokens=_whole(details.get("cached_tokens") or 0),
    )


def _whole(value: object) -> int:
    """A token's id, or a count.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"{_shown(value)} is neither a token id nor a count")
    return value


def _shown(value: object) -> str:
    return shortened(repr(value), 60)


def _logprob(entry: dict[str, Any], token: int) -> float:
    if entry.get("token_id", token) != token:
        raise InfraError(f"log-probability of token {_shown(entry['token_id'])} came with token {token}")
    value = entry["logprob"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InfraError(f"log-probability of token {token} is {_shown(value)}")
    if not math.isfinite(value) or value <= MISSING_LOGPROB or value > ROUNDING:
        raise InfraError(f"log-probability of token {token} is {value}")
    return float(value)


def _versions(
    spans: list[dict[str, Any]] | None, length: int, version: PolicyVersion, static: bool
) -> list[VersionSpan]:
    """The version spans of an answer.

    A server reports spans if it knows Headway's versions: full weights may change even during a request. An
    adapter, or a base model that nothing replaces, has one version, which the server calls `default`.
    """
    if not spans and not static:
        raise InfraError("the server does not say which weights sampled, and they may have changed meanwhile")
    known = spans and all("." in str(span["version"]) for span in spans)
    if spans and not known and not static:
        # The server was restarted, and has received no weights since.
        raise ServerLostError(f"the server sampled from weights it calls {_shown(spans[0]['version'])}")
    if not spans or not known:
        return [VersionSpan(start=0, end=length, version=version)]
    return [
        VersionSpan(start=span["start"], end=span["end"], version=PolicyVersion.parse(span["version"]))
        for span in spans
    ]
