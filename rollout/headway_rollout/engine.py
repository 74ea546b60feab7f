"""The calls to vLLM over HTTP, each with a deadline."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

import aiohttp

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_api.weights_direct import MEET_SECONDS, STEP_SECONDS, DirectPlace
from headway_wire.contents import content

HEALTH_SECONDS: Final = 5.0
SHORT_SECONDS: Final = 30.0
LOAD_SECONDS: Final = 600.0
"""Deadline of a call that moves weights, and of a call that may have to wait for such a call."""
JOIN_SECONDS: Final = MEET_SECONDS + STEP_SECONDS + SHORT_SECONDS
"""Deadline of the call in which the workers meet the learner. The learner is reached within `MEET_SECONDS`,
and the group forms within `STEP_SECONDS`."""
MAX_METRICS: Final = 16 * bounds.MIB
"""Maximum bytes of vLLM's metrics: a hundred times their size when vLLM has just started."""

WRONG_TENSOR: Final = "wrong tensor: "
"""Beginning of a worker's error message if a tensor does not match its digest. vLLM passes on only the
message of a worker's exception, so the message must identify the error."""


class EngineError(Exception):
    """vLLM answered with an error, or not at all."""


class UnknownToEngineError(EngineError):
    """vLLM has no adapter of the name in the call."""


class LearnerNotMetError(Exception):
    """The engine's workers could not meet the learner; the engine's weights are unchanged."""


class WrongWeightsError(EngineError):
    """A worker received or holds a tensor that differs from the one that the learner published."""


class Exposition(NamedTuple):
    """An engine's metrics, unparsed, in the text format of Prometheus."""

    content: bytes
    content_type: str


class Engine:
    """vLLM, as the weight agent calls it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None = None) -> None:
        """Call the vLLM at `url`; `key` is the key of its port."""
        self._http = http
        self._url = url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.suspended = False
        """Whether the engine must not compute now: it is paused, or its workers are meeting the learner."""

    async def healthy(self) -> bool:
        """Whether vLLM answers and its engine loop is alive."""
        limit = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
        try:
            async with self._http.get(f"{self._url}/health", timeout=limit) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def load_adapter(self, name: str, folder: str) -> None:
        """Register the adapter in `folder` under `name`."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, LOAD_SECONDS)

    async def unload_adapter(self, name: str) -> None:
        """Refuse new requests for `name`; those in flight continue and may still read its folder.

        A name that vLLM does not know is already refused.
        """
        with suppress(UnknownToEngineError):
            await self._post("/v1/unload_lora_adapter", {"lora_name": name}, SHORT_SECONDS)

    async def adapters_in_use(self) -> frozenset[str]:
        """Adapters that a running or waiting request names."""
        try:
            return parse_adapters_in_use(await self.metrics())
        except (LookupError, ValueError) as error:
            raise EngineError(f"vLLM's metrics cannot be read: {shortened(str(error), 200)}") from error

    async def metrics(self, seconds: float = SHORT_SECONDS) -> str:
        """All of vLLM's metrics."""
        return (await self.exposition(seconds, MAX_METRICS)).content.decode(errors="replace")

    async def exposition(self, seconds: float, maximum: int) -> Exposition:
        """All of vLLM's metrics, unparsed: within `seconds`, and at most `maximum` bytes.

        Raises:
            EngineError: vLLM did not answer in time or with 200, or the answer is larger.
        """
        limit, plain = aiohttp.ClientTimeout(total=seconds), self._headers | {"Accept-Encoding": "identity"}
        url = f"{self._url}/metrics"
        try:
            async with self._http.get(url, timeout=limit, headers=plain, allow_redirects=False) as response:
                if response.status != 200:
                    raise EngineError(f"GET /metrics: {response.status}")
                body = await content(response, maximum)
                return Exposition(body, response.headers.get("Content-Type", "text/plain"))
        except OutOfBoundsError as error:
            raise EngineError(f"GET /metrics: vLLM says {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"GET /metrics: {type(error).__name__}: {error}") from error

    async def next_logprob(self, model: str, context: list[int], token: int) -> float:
        """Log-probability of `token` after `context`, by the code path that also samples.

        Unlike the coordinator's requests, this one has no cache salt. If keys and values of older weights
        survived a swap in the prefix cache, this request would find them, and the canary would differ.

        It does not use `prompt_logprobs`: with adapters, vLLM scores a prompt's tokens with the indices of
        the tokens that it will sample next. That kills the engine as soon as another request shares the
        batch.

        Raises:
            EngineError: vLLM refused, did not answer, or returned no log-probability for `token`.
        """
        body = {
            "model": model,
            "token_ids": context,
            # The answer lists the sampled token first and is cut at `logprobs`, so the token is listed twice.
            "sampling_params": {
                "max_tokens": 1,
                "temperature": 1.0,
                "logprobs": 2,
                "logprob_token_ids": [token, token],
            },
        }
        answer = await self._post("/inference/v1/generate", body, LOAD_SECONDS)
        try:
            entries = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            found = [float(entry["logprob"]) for entry in entries if entry["token_id"] == token]
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise EngineError(f"vLLM's answer has no log-probabilities: {error!r}"[:500]) from error
        if not found:
            raise EngineError(f"vLLM returned no log-probability for token {token}")
        return found[0]

    async def pause(self) -> None:
        """Freeze all requests and clear the KV cache. After `resume`, vLLM computes their prefixes again."""
        await self._post("/pause?mode=keep&clear_cache=true", None, LOAD_SECONDS)
        self.suspended = True

    async def resume(self) -> None:
        """Continue the frozen requests."""
        await self._post("/resume", None, SHORT_SECONDS)
        self.suspended = False

    async def update_weights(self, folder: str, files: list[str], digests: str | None, version: str) -> None:
        """Load a whole checkpoint into the paused engine. vLLM labels later tokens with `version`.

        `digests` names the file with the tensors' digests: the engine's workers refuse other tensors.
        """
        await self._update({"folder": folder, "files": files, "digests": digests}, version)

    async def join(self, host: str, place: DirectPlace) -> None:
        """Make the workers meet the learner on `host`; their weights are unchanged.

        Raises:
            LearnerNotMetError: at least one worker could not meet the learner.
        """
        where = {"host": host, "place": place.model_dump_json()}
        body = {"method": "meet_learner", "kwargs": where}
        self.suspended = True
        try:
            answer = await self._post("/collective_rpc", body, JOIN_SECONDS)
        except EngineError as error:
            raise LearnerNotMetError(str(error)) from error
        finally:
            self.suspended = False
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list):
            raise LearnerNotMetError("vLLM's answer does not say whether its workers reached the learner")
        failures = [why for why in results if why is not None]
        if failures:
            raise LearnerNotMetError(
                f"a worker did not reach the learner: {shortened(str(failures[0]), 2000)}"
            )

    async def take_joined(self, folder: str, header: str, version: str) -> None:
        """Load the joined learner's weights into the paused engine. vLLM labels later tokens with `version`.

        `header` is the file in `folder` that describes the weights; the workers refuse other weights.
        """
        await self._update({"folder": folder, "header": header}, version)

    async def _update(self, what: dict[str, Any], version: str) -> None:
        await self._post("/start_weight_update", None, LOAD_SECONDS)
        await self._post("/update_weights", {"update_info": what}, LOAD_SECONDS)
        await self._post("/finish_weight_update", {"weight_version": version}, LOAD_SECONDS)

    async def _post(self, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=5)
        try:
            async with self._http.post(
                f"{self._url}{path}",
                json=body,
                headers=self._headers,
                timeout=limit,
                auto_decompress=False,
                allow_redirects=False,
            ) as response:
                data = await content(response, bounds.ANSWER)
                if response.status != 200:
                    text = data.decode(errors="replace")
                    raise _refusal(response.status, text)(f"POST {path}: {response.status}: {_message(text)}")
            return json_within(data, bounds.ANSWER) if data.startswith(b"{") else None
        except OutOfBoundsError as error:
            raise EngineError(f"POST {path}: the answer cannot be read: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"POST {path}: {type(error).__name__}: {error}") from error


def _refusal(status: int, text: str) -> type[EngineError]:
    if WRONG_TENSOR in text:
        return WrongWeightsError
    return UnknownToEngineError if status == 404 else EngineError


def _message(text: str) -> str:
    try:
        return str(json_within(text, bounds.ANSWER)["error"]["message"])[:2000]
    except (ValueError, LookupError, TypeError):
        return text[:500]


def parse_adapters_in_use(metrics: str) -> frozenset[str]:
    """Adapters that a request uses, read from `vllm:lora_requests_info` in vLLM's metrics.

    It has one series for each set of adapters that were in use together. A series' value is the time when it
    last applied, so only the newest series counts.
    """
    newest = max(
        (line for line in metrics.splitlines() if line.startswith("vllm:lora_requests_info{")),
        key=lambda line: float(line.rsplit(" ", 1)[1]),
        default="",
    )
    names: set[str] = set()
    for label in ("running_lora_adapters", "waiting_lora_adapters"):
        _, found, rest = newest.partition(f'{label}="')
        if found:
            names.update(name for name in rest.partition('"')[0].split(",") if name)
    return frozenset(names)
