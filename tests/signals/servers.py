"""The rollout servers of a recorded run. They answer the product's gateway, all waiting turns at once.

This module also implements the faults of a job's servers: old or inexact weights, and another temperature
than the learner knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.signals.circumstances import World
from tests.signals.sampler import EMBEDDING, Sampler, Shape, Weights
from torch import Tensor

from headway_api.records import PolicyVersion, VersionSpan
from headway_api.seeds import seed
from headway_api.spec.model import Lora
from headway_coordinator.engines.vllm import Request, Sampled

QUIET = 50
"""Turns of the event loop without a new request after which no further request is expected."""
PREFIX = "base_model.model."


class Servers:
    """Implements the interface that `Gateway` expects of an engine."""

    def __init__(self, base: Path, *, rows: int, length: int) -> None:
        """Args:
        rows: number of concurrent conversations.
        length: maximum tokens of a conversation.
        """
        self._base: dict[str, Tensor] = load_file(base / "model.safetensors")
        self._shape = Shape.of(base)
        self._rows, self._length = rows, length
        self._weights: dict[int, Weights] = {}
        self._samplers: dict[int, Sampler] = {}
        self._world = World()
        self._versions: Mapping[str, int] = {}
        self._heated = False
        self._waiting: list[tuple[str, Request, asyncio.Future[Sampled]]] = []
        self._answering: asyncio.Task[None] | None = None

    def hold(self, step: int, adapter: Mapping[str, Tensor], lora: Lora, oldest: int) -> None:
        """Keep the weights of a step, and drop those of steps before `oldest`."""
        self._weights[step] = merged(self._base, adapter, lora.alpha / lora.rank)
        self._weights = {held: weights for held, weights in self._weights.items() if held >= oldest}

    def begin(self, world: World, versions: Mapping[str, int], *, training: bool) -> None:
        """Begin other episodes.

        `versions` maps a group to the step whose weights sample it.
        """
        self._samplers = {}
        self._world, self._versions, self._heated = world, versions, training

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled:
        """Sample this turn together with the others that wait."""
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting.append((session, request, future))
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer())
        return await future

    async def _answer(self) -> None:
        quiet, seen = 0, -1
        while quiet < QUIET:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)
        waiting, self._waiting, self._answering = self._waiting, [], None
        by_version: dict[int, list[tuple[str, Request, asyncio.Future[Sampled]]]] = {}
        for asked in waiting:
            by_version.setdefault(self._version(asked[0]), []).append(asked)
        for step, members in sorted(by_version.items()):
            try:
                self._tell(step, members)
            except Exception as error:
                for _, _, future in members:
                    if not future.done():
                        future.set_exception(error)

    def _tell(self, step: int, asked: Sequence[tuple[str, Request, asyncio.Future[Sampled]]]) -> None:
        turns = self._sampler(step).sample([(session, self._served(r)) for session, r, _ in asked])
        version = PolicyVersion(incarnation=0, step=step)
        for (_, _, future), turn in zip(asked, turns, strict=True):
            spans = [VersionSpan(start=0, end=len(turn.tokens), version=version)]
            answer = Sampled(turn.tokens, turn.logprobs, spans, turn.finish_reason, turn.cached)
            if not future.done():  # the episode was abandoned in the meantime
                future.set_result(answer)

    def _version(self, session: str) -> int:
        return self._versions[session.rsplit("-", 2)[0]]

    def _served(self, request: Request) -> Request:
        if not self._heated:
            return request
        return replace(request, temperature=request.temperature * self._world.heat)

    def _sampler(self, step: int) -> Sampler:
        if step not in self._samplers:
            weights = faulty(self._weights[step], self._world)
            self._samplers[step] = Sampler(self._shape, weights, self._rows, self._length)
        return self._samplers[step]


def merged(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float) -> Weights:
    """Full weights with an adapter's change added. The names are PEFT's."""
    found = dict(base)
    for name, tensor in adapter.items():
        if ".lora_A." not in name:
            continue
        module, _, rest = name.removeprefix(PREFIX).partition(".lora_A.")
        change = adapter[f"{PREFIX}{module}.lora_B.{rest}"] @ tensor
        found[f"{module}.weight"] = base[f"{module}.weight"] + scale * change
    return found


def faulty(weights: Weights, world: World) -> Weights:
    """The weights as faulty servers hold them. The same weights always get the same errors."""
    found: dict[str, Any] = dict(weights)
    if world.weight_noise:
        for name, tensor in weights.items():
            source = torch.Generator().manual_seed(seed("noise", name))
            found[name] = tensor * (1 + world.weight_noise * torch.randn(tensor.shape, generator=source))
    if world.odd_tokens:
        table = found[EMBEDDING].clone()
        source = torch.Generator().manual_seed(seed("odd"))
        odd = torch.rand(len(table), generator=source) < 0.1
        error = torch.randn(table.shape, generator=source) * table.norm(dim=1, keepdim=True)
        table[odd] += world.odd_tokens * error[odd] / table.shape[1] ** 0.5
        found[EMBEDDING] = table
    return found
