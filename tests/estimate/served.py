"""The demo's tiny model behind vLLM's route for the coordinator. It samples all waiting turns together.

The request, the answer, the versions and the slots are the product's; vLLM itself is missing. A prompt prefix
that another conversation of the same version had is found in the cache, as vLLM finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web
from safetensors.torch import load_file
from tests.estimate.slots import Slots
from tests.signals.sampler import Sampler, Shape, Weights
from tests.signals.servers import QUIET, merged
from torch import Tensor

from headway_api.document import Json
from headway_api.model_names import BASE_MODEL
from headway_api.spec.model import Lora
from headway_coordinator.engines.vllm import Request

KEPT = 3
"""How many versions keep their conversations."""


class Served:
    """A rollout server and its weight agent."""

    def __init__(self, base: Path, length: int) -> None:
        """`length`: maximum tokens of a conversation."""
        self._base: Weights = load_file(base / "model.safetensors")
        self._shape, self._length = Shape.of(base), length
        self._weights: dict[str, Weights] = {}
        """Weights by version. A version that no learner has announced has the base model's weights."""
        self._samplers: dict[str, Sampler] = {}
        self._asked = 0
        self._waiting: list[tuple[str, Request, asyncio.Future[Json]]] = []
        self._answering: asyncio.Task[None] | None = None
        self._slots = Slots()

    def hold(self, version: str, trained: Mapping[str, Tensor], lora: Lora | None) -> None:
        """Keep the weights that the learner publishes."""
        if lora is None:
            self._weights[version] = {
                **self._base,
                **{k.removeprefix("module."): v for k, v in trained.items()},
            }
        else:
            self._weights[version] = merged(self._base, trained, lora.alpha / lora.rank)

    def app(self) -> web.Application:
        return self._slots.app(self._generate)

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        given = body["sampling_params"]
        asked = Request(
            prompt=body["token_ids"],
            max_tokens=given["max_tokens"],
            temperature=given["temperature"],
            top_p=given["top_p"],
            seed=given["seed"],
            stop_token_ids=given["stop_token_ids"],
        )
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._version(body), asked, future))
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer())
        return web.json_response(await future)

    def _version(self, body: Json) -> str:
        """An adapter's version is in its name.

        The base model's version is the one that the first slot holds.
        """
        if body["model"] != BASE_MODEL:
            return str(body["model"]).rpartition("-")[2]
        held = self._slots.held["policy"]["version"]
        return f"{held['incarnation']}.{held['step']}"

    async def _answer(self) -> None:
        quiet, seen = 0, -1
        while quiet < QUIET:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)
        waiting, self._waiting, self._answering = self._waiting, [], None
        alike: dict[tuple[str, float, float], list[tuple[Request, asyncio.Future[Json]]]] = {}
        for version, asked, future in waiting:
            alike.setdefault((version, asked.temperature, asked.top_p), []).append((asked, future))
        for (version, _, _), members in sorted(alike.items(), key=lambda one: one[0]):
            try:
                self._tell(version, members)
            except Exception as error:
                for _, future in members:
                    if not future.done():
                        future.set_exception(error)

    def _tell(self, version: str, members: list[tuple[Request, asyncio.Future[Json]]]) -> None:
        sampler = self._sampler(version, len(members))
        names = [f"{self._asked + number}" for number in range(len(members))]
        self._asked += len(members)
        turns = sampler.sample([(name, asked) for name, (asked, _) in zip(names, members, strict=True)])
        for (_, future), turn in zip(members, turns, strict=True):
            content = [
                {"token_id": token, "logprob": min(0.0, probable)}
                for token, probable in zip(turn.tokens, turn.logprobs, strict=True)
            ]
            choice = {
                "finish_reason": turn.finish_reason,
                "token_ids": turn.tokens,
                "logprobs": {"content": content},
                "weight_versions": [{"version": version, "start": 0, "end": len(turn.tokens)}],
            }
            usage = {"prompt_tokens_details": {"cached_tokens": turn.cached}}
            if not future.done():
                future.set_result({"choices": [choice], "usage": usage})

    def _sampler(self, version: str, more: int) -> Sampler:
        """The version's sampler. It starts empty again if it has no room for `more` further conversations."""
        found = self._samplers.pop(version, None)
        if found is None or len(found._known) + more > ROOM:
            weights = self._weights.get(version, self._base)
            found = Sampler(self._shape, weights, max(ROOM, 2 * more), self._length)
        self._samplers[version] = found
        for old in [*self._samplers][:-KEPT]:
            del self._samplers[old]
        return found


ROOM = 192
"""Conversations that a version keeps. As in a real cache, an evicted conversation is computed again."""
