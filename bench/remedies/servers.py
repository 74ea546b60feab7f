"""Replaces the rollout servers of a job by code in this process, which samples with the published weights.

The weights at the beginning of a group sample all of its episodes to their end. So the groups of a batch are
as old as `maxStepsOffPolicy` allows, and the weights of a token do not depend on timing.

The turns of one step's episodes are answered together, once all of these episodes wait for an answer. So the
batch of a turn does not depend on timing either, and the same job samples the same bits again.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tests.signals.circumstances import World
from tests.signals.sampler import Sampler, Shape, Weights
from tests.signals.servers import QUIET, merged
from tests.signals.stage import NEVER, Boxes, Reader

from headway_api.records import EpisodeRecord, PolicyVersion, Purpose, VersionSpan, WeightsManifest
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.engines.router import Router
from headway_coordinator.engines.vllm import Request, Sampled
from headway_coordinator.episode import Episodes, Rules, Task
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.trajectory import render

CONFIGURATION = "adapter_config.json"
ADAPTER = "adapter_model.safetensors"


class Servers:
    """Replaces the fleet for `Training`, and plays the episodes."""

    def __init__(self, spec: RLTrainingJobSpec, base: Path) -> None:
        self._spec = spec
        self._base = load_file(base / "model.safetensors")
        self._shape = Shape.of(base)
        self._renderer, tokenizer = render.load(base)
        self._closing = tokenizer.convert_tokens_to_ids("</tool_call>")
        self._thread = ThreadPoolExecutor(1)
        self._weights: tuple[PolicyVersion, Weights] | None = None
        self._casts: dict[tuple[PolicyVersion, Purpose], Cast] = {}
        self._cast_of: dict[str, Cast] = {}
        """Group -> the cast that plays its episodes."""
        self.ranks: list[int] = []
        """Rank of each adapter that was loaded, in order."""
        self.router = Router()

    async def want(self, manifest: WeightsManifest, reported: float | None = None) -> None:
        """Load the adapter that a manifest names, for all groups that begin later."""
        folder = Path(manifest.uri.removeprefix("file://"))
        adapter = load_file(folder / ADAPTER)
        lora: dict[str, Any] = json.loads((folder / CONFIGURATION).read_text())
        assert not lora.get("use_rslora")
        self._weights = manifest.version, merged(self._base, adapter, lora["lora_alpha"] / lora["r"])
        self.ranks.append(lora["r"])
        self._cast_of = {group: cast for group, cast in self._cast_of.items() if cast.live}
        for key in [key for key, cast in self._casts.items() if not cast.live]:
            self._casts.pop(key).close()

    async def ready(self) -> None:
        """Return at once, because `want` loads a version immediately."""

    async def release(self) -> None:
        """Do nothing, because there is no second weight slot."""

    async def episode(self, task: Task) -> EpisodeRecord:
        """Play one episode to its end."""
        if task.group_id not in self._cast_of:
            self._cast_of[task.group_id] = self._newest(task.purpose)
        return await self._cast_of[task.group_id].run(task)

    def close(self) -> None:
        """End the sampling thread."""
        self._thread.shutdown(cancel_futures=True)

    def _newest(self, purpose: Purpose) -> Cast:
        assert self._weights is not None
        version, weights = self._weights
        if (version, purpose) not in self._casts:
            spec = self._spec
            assert spec.model.context_length is not None
            # After a return to a checkpoint, the groups of all slots begin at once, and a batch may be
            # larger.
            active = (spec.algorithm.max_steps_off_policy + 1) * spec.algorithm.batch_size
            rows = max(2 * active * spec.algorithm.group_size, spec.evaluation.max_rows or 0)
            sampler = Sampler(self._shape, weights, rows, 2 * spec.model.context_length)
            reader: Any = Reader(self._renderer, 0.0, self._closing)
            self._casts[version, purpose] = Cast(spec, reader, sampler, version, self._thread)
        return self._casts[version, purpose]


class Cast:
    """Plays the episodes that one version's weights sample for one purpose."""

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        renderer: Any,
        sampler: Sampler,
        version: PolicyVersion,
        thread: ThreadPoolExecutor,
    ) -> None:
        assert spec.model.context_length is not None
        assert spec.agent.turn_limit is not None
        self._sampler = sampler
        self._version = version
        self._thread = thread
        boxes: Any = Boxes(World(), spec.seed)
        self._boxes = boxes
        gateway = Gateway(renderer, self, spec.model.context_length, NEVER)
        rules = Rules(NEVER, NEVER, (spec.reward.range[0], spec.reward.range[1]))
        agent = Builtin(gateway, spec.agent.turn_limit)
        self._episodes = Episodes(rules, agent, self._boxes, self._boxes)
        self.live = 0
        """Number of running episodes."""
        self._waiting: dict[str, tuple[Request, asyncio.Future[Sampled]]] = {}
        self._answering: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Free the computed tensors. Call it once no episode runs or will run. Python would free them much
        later."""
        del self._sampler, self._episodes

    async def run(self, task: Task) -> EpisodeRecord:
        """Play one episode."""
        self.live += 1
        self._boxes.tasks[task.episode_id] = task
        try:
            return await self._episodes.run(task)
        finally:
            self.live -= 1
            self._look()

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled:
        """Answer this turn together with the others, once all running episodes wait."""
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting[session] = request, future
        self._look()
        try:
            return await future
        finally:
            self._waiting.pop(session, None)

    def _look(self) -> None:
        if self._answering is None and self._waiting:
            self._answering = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        """Answer turns until a running episode does not wait for an answer. The next request starts this
        again."""
        try:
            while await self._settled():
                await self._tell()
        finally:
            self._answering = None

    async def _settled(self) -> bool:
        """Whether all running episodes wait, after several rounds of the event loop without a change."""
        quiet, seen = 0, (0, 0)
        while quiet < QUIET:
            await asyncio.sleep(0)
            now = self.live, len(self._waiting)
            quiet, seen = (quiet + 1 if now == seen else 0), now
        return 0 < len(self._waiting) == self.live

    async def _tell(self) -> None:
        asked = sorted(self._waiting.items())
        requests = [(session, request) for session, (request, _) in asked]
        loop = asyncio.get_running_loop()
        try:
            turns = await loop.run_in_executor(self._thread, self._sampler.sample, requests)
        except Exception as error:
            for _, (_, future) in asked:
                if not future.done():
                    future.set_exception(error)
            return
        for (session, (_, future)), turn in zip(asked, turns, strict=True):
            spans = [VersionSpan(start=0, end=len(turn.tokens), version=self._version)]
            if not future.done():  # done already if its episode was given up meanwhile
                future.set_result(Sampled(turn.tokens, turn.logprobs, spans, turn.finish_reason, turn.cached))
            self._waiting.pop(session, None)
