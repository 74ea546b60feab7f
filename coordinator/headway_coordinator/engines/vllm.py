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
from headway_coordinator.faults import InfraFault
from headway_coordinator.http import Unreachable, UpstreamError, Within, call

MISSING_LOGPROB = -9999.0
"""What vLLM writes where it has no log-probability."""
TOKEN_BYTES, TOKEN_VALUES = 1024, 32
"""Of one sampled token in an answer, at most: it takes some 100 bytes, its log-probability included."""
ROUNDING = 1e-3
"""How far above 0 a log-probability may come by rounding."""
MOST_TOKENS = 10**9
"""Of one count in an answer."""


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
    """Strings that end it, too: the token that completes one is the last."""
    schema: str | None = None
    """JSON schema: tokens that break it are hidden from the sampler, and the log-probabilities are of the
    others alone."""


@dataclass(frozen=True)
class Sampled:
    """What was sampled."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[VersionSpan]
    finish_reason: str
    """`stop` (the model ended its turn) or `length`."""
    cached_tokens: int
    """Prompt tokens the engine found in its prefix cache; 0 where it does not report them."""


class SchemaRefused(Exception):
    """The server takes no such schema."""


class ServerLost(Exception):
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
        key: what the server's port asks for.
        slot: of the server, that the model belongs to.
        static: whether nothing can replace these weights during the request. None: so it is with an adapter,
            and not with the base model's name.

    Raises:
        ServerLost: unreachable, failing, without the model, or it aborted the request.
        SchemaRefused: it refuses a request that has a schema.
        InfraFault: the server refuses the request itself, or answers what cannot be trusted.
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
    except Unreachable as error:
        raise ServerLost(str(error)) from error
    except UpstreamError as error:
        if error.status >= 500 or error.status in (404, 429):
            raise ServerLost(str(error)) from error
        if error.status == 400 and request.schema is not None:
            raise SchemaRefused(str(error)) from error
        raise InfraFault(str(error)) from error
    try:
        return read(answer, version, static=model != BASE_MODEL if static is None else static)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        words = shortened(str(error), 200)
        raise InfraFault(
            f"{url} answered what nobody understands: {type(error).__name__}: {words}"
        ) from error


def largest(tokens: int) -> Within:
    """How large an answer of at most so many tokens may be."""
    return Within(size=bounds.MIB + TOKEN_BYTES * tokens, values=bounds.ANSWER_VALUES + TOKEN_VALUES * tokens)


def _body(model: str, salt: str, request: Request) -> dict[str, Any]:
    return {
        "model": model,
        # Nothing that was computed for another version is ever found in the prefix cache, whatever was done
        # to the cache when the weights changed.
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
        ServerLost: the server aborted the request, or (of weights that are not static) has some that are none
            of ours.
        InfraFault: evidence for a sampled token is missing.
    """
    choice = answer["choices"][0]
    if choice["finish_reason"] not in ("stop", "length"):
        raise ServerLost(f"the server ended the request with {_shown(choice['finish_reason'])}")
    tokens = [_whole(token) for token in choice.get("token_ids") or []]
    content = (choice.get("logprobs") or {}).get("content") or []
    if not tokens or len(content) != len(tokens):
        raise InfraFault(f"the server answered {len(tokens)} tokens with {len(content)} log-probabilities")
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
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{_shown(value)} is no token id and no count")
    return value


def _shown(value: object) -> str:
    return shortened(repr(value), 60)


def _logprob(entry: dict[str, Any], token: int) -> float:
    if entry.get("token_id", token) != token:
        raise InfraFault(f"log-probability of token {_shown(entry['token_id'])} came with token {token}")
    value = entry["logprob"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InfraFault(f"log-probability of token {token} is {_shown(value)}")
    if not math.isfinite(value) or value <= MISSING_LOGPROB or value > ROUNDING:
        raise InfraFault(f"log-probability of token {token} is {value}")
    return float(value)


def _versions(
    spans: list[dict[str, Any]] | None, length: int, version: PolicyVersion, static: bool
) -> list[VersionSpan]:
    """Spans as the server reports them where it knows our versions (full weights, swapped even during a
    request). An adapter, and a base model that nothing replaces, are of one version; the server then calls
    them `default`."""
    if not spans and not static:
        raise InfraFault("the server does not say which weights sampled, and they may have changed meanwhile")
    known = spans and all("." in str(span["version"]) for span in spans)
    if spans and not known and not static:
        # It was started again, and nobody has given it weights since.
        raise ServerLost(f"the server sampled from weights it calls {_shown(spans[0]['version'])}")
    if not spans or not known:
        return [VersionSpan(start=0, end=length, version=version)]
    return [
        VersionSpan(start=span["start"], end=span["end"], version=PolicyVersion.parse(span["version"]))
        for span in spans
    ]
