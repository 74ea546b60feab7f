"""Starts the servers that all sides share (vLLM, S3, warm sandboxes), and runs each side as a process."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from ports import free_port
from role_keys import TO_BROKER, TO_ROLLOUT
from rollout_server import RolloutServer

from bench.evaluation import clerk, replay
from bench.evaluation.environment import procedure
from bench.evaluation.replay import Call
from bench.support.model import SMALL
from bench.support.objects import BUCKET, REGION, objects
from bench.support.sandboxes import WarmPool, warm_pool
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.model_names import BASE_MODEL, salt_of
from headway_api.records import GroupRecord
from headway_api.store import Store, open_store
from headway_coordinator.evaluation.candidates import UNTRAINED
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.spool import Spool
from headway_coordinator.trajectory.render import load

CONTEXT = 2048
PLACES = 16
"""Number of concurrent episodes, the same on every side."""
CANDIDATE = "clerk"
SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_tokens=clerk.TURN_TOKENS)
SEED = 0
ENVIRONMENT, ENTRYPOINT = Path(procedure.__file__).parent, "desk:Desk"
MODEL, ROWS = f"s3://{BUCKET}/model", f"s3://{BUCKET}/rows.jsonl"
# The chat endpoint parses tool calls; the option does not affect `/inference/v1/generate`.
READS_CALLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
START_SECONDS = 300.0


@dataclass(frozen=True)
class Ran:
    """The result of one run of one side."""

    side: str
    seconds: float
    """Seconds from the beginning of the first episode to the end of the last one. With Headway, the last
    episode must be durable and billed."""
    cpu: float
    """CPU seconds of the client's process in this time."""
    in_episodes: float
    """Sum of the seconds of all episodes, each from its sandbox's lease or its first turn to its end."""
    in_calls: float
    """Seconds that the episodes spent in calls to vLLM, by the client's clock."""
    whole: float
    """Seconds of the whole process, also before the first and after the last episode."""
    engine_cpu: float
    """CPU seconds of vLLM's processes during `whole`."""
    episodes: int
    turns: int
    prompt_tokens: int
    sampled_tokens: int
    solved: int
    """Number of episodes with the right answer. For the side `limit`, those with the recorded tokens."""

    @property
    def rate(self) -> float:
        """Episodes per second."""
        return self.episodes / self.seconds


class Stand:
    """Runs the sides. Before each run, vLLM's prefix cache contains only the common beginning of all
    episodes.

    Requests that arrive together cannot use each other's cache. On the side `limit` the first episodes begin
    together. So with an empty cache, each would compute the common beginning.
    """

    def __init__(
        self, folder: Path, server: RolloutServer, objects_url: str, pool: WarmPool, rows: int
    ) -> None:
        self._folder = folder
        self._server = server
        self._objects = objects_url
        self._pool = pool
        self._rows = rows
        self._numbers = itertools.count()
        self._store: Store = open_store(config(objects_url, "store").spec.output)
        self._opening: Call | None = None
        """The very first turn, once it is known."""

    async def headway(self, profile: Path | None = None) -> tuple[Ran, list[list[Call]]]:
        """Run a whole evaluation with Headway. Return the result, and the requests reconstructed from its
        records."""
        job = config(self._objects, f"run-{next(self._numbers)}")
        folder = self._folder / job.uid
        folder.mkdir()
        await self._pool.fill()
        settings = {
            "job": job.model_dump(mode="json", by_alias=True),
            "engine": self._server.url,
            "agent": self._server.agent_url,
            "broker": self._pool.url,
            "port": free_port(),
            "gateway_port": free_port(),
            "folder": str(folder),
            "profile": str(profile) if profile else None,
        }
        measured = await self._process("headway_side", settings, salt_of(UNTRAINED, CANDIDATE))
        groups = await asyncio.to_thread(self._groups, job)
        episodes = [episode for group in groups for episode in group.episodes]
        turns = [turn for episode in episodes for turn in episode.turns]
        found = Ran(
            side="headway",
            **measured,
            episodes=len(episodes),
            turns=len(turns),
            prompt_tokens=sum(turn.prompt_tokens for turn in turns),
            sampled_tokens=sum(turn.sampled_tokens for turn in turns),
            solved=sum(episode.score == 1.0 for episode in episodes),
        )
        plan = replay.plan(groups, SAMPLING, SEED)
        self._opening = plan[0][0]
        return found, plan

    async def limit(self, plan: Sequence[Sequence[Call]]) -> Ran:
        """Send the requests of `plan` to vLLM, without sandboxes or tools."""
        stop = self._stop_token_ids
        asked = [
            [
                {"body": replay.body(BASE_MODEL, call, SAMPLING, stop), "sampled": call.sampled}
                for call in calls
            ]
            for calls in plan
        ]
        path = self._folder / f"plan-{next(self._numbers)}.json"
        path.write_text(json.dumps(asked))
        url = f"{self._server.url}/inference/v1/generate"
        settings = {"url": url, "key": TO_ROLLOUT, "plan": str(path), "places": PLACES}
        return Ran(side="limit", **await self._process("limit_side", settings, replay.SALT))

    async def inspect(self, rows: int | None = None) -> Ran:
        """Run the same task in Inspect AI, over all rows or the first `rows`."""
        settings = {
            "url": f"{self._server.url}/v1",
            "key": TO_ROLLOUT,
            "model": BASE_MODEL,
            "rows": self._rows if rows is None else rows,
            "places": PLACES,
            "max_tokens": clerk.TURN_TOKENS,
            "folder": str(self._folder / f"inspect-{next(self._numbers)}"),
        }
        return Ran(side="inspect", **await self._process("inspect_side", settings))

    @cached_property
    def _stop_token_ids(self) -> list[int]:
        return load(self._folder / "model")[0].stop_token_ids

    def _groups(self, job: EvalConfig) -> list[GroupRecord]:
        layout = Layout(job.spec.output.uri, job.namespace, job.name, job.uid)
        return Spool(self._store, layout).evaluated(CANDIDATE)

    async def _process(self, side: str, settings: dict[str, Any], salt: str | None = None) -> dict[str, Any]:
        """Run a side's process. Return its own numbers, the seconds of the process, and vLLM's CPU
        seconds."""
        await self._ask("/reset_prefix_cache")
        if self._opening is not None and salt is not None:
            short = dataclasses.replace(SAMPLING, max_tokens=1)
            body = replay.body(BASE_MODEL, self._opening, short, self._stop_token_ids, salt)
            await self._ask("/inference/v1/generate", body)
        command = [sys.executable, "-m", f"bench.evaluation.{side}", json.dumps(settings)]
        before, started = self._engine_seconds(), time.monotonic()
        log = self._folder / f"{side}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
            output, _ = await process.communicate()
        assert process.returncode == 0, log.read_text(errors="replace")[-3000:]
        spent = {"whole": time.monotonic() - started, "engine_cpu": self._engine_seconds() - before}
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found | spent

    async def _ask(self, path: str, body: Any = None) -> None:
        url, headers = self._server.url + path, {"Authorization": f"Bearer {TO_ROLLOUT}"}
        async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    def _engine_seconds(self) -> float:
        times = [psutil.Process(pid).cpu_times() for pid in self._server.engine_processes()]
        return sum(one.user + one.system for one in times)


def config(objects_url: str, uid: str) -> EvalConfig:
    """The evaluation's configuration: one candidate, one greedy try per row."""
    model = {"base": MODEL, "dtype": "float32", "contextLength": CONTEXT}
    spec = {
        "candidates": [{"name": CANDIDATE, "model": model}],
        "data": {"uri": ROWS},
        "agent": {"builtin": {"maxTurns": procedure.LONGEST + 2}},
        "environment": {"image": "none", "entrypoint": ENTRYPOINT},
        "seed": SEED,
        "evaluation": {"sampling": {"temperature": SAMPLING.temperature, "maxTokens": SAMPLING.max_tokens}},
        "gate": {"candidate": CANDIDATE, "minimum": "0.5"},
        "rollout": {"maxConcurrency": PLACES, "engine": {"extraArgs": READS_CALLS}},
        "output": {"uri": f"s3://{BUCKET}/runs", "endpointUrl": objects_url, "region": REGION},
    }
    candidate = {"name": CANDIDATE, "kind": "Model", "serverSet": 0} | model
    about = {"name": "evaluation", "namespace": "bench", "uid": uid}
    return EvalConfig.model_validate(about | {"spec": spec, "candidates": [candidate]})


@asynccontextmanager
async def standing(folder: Path, rows: int) -> AsyncIterator[Stand]:
    """Start servers and sandboxes, with the model loaded. End them after the block."""
    base = clerk.write_model(folder / "model", SMALL)
    with objects(folder / "objects") as url:
        job = config(url, "store")
        store = open_store(job.spec.output)
        for path in sorted(base.iterdir()):
            store.upload(path, f"{MODEL}/{path.name}")
        store.put(ROWS, "".join(json.dumps(row) + "\n" for row in procedure.rows(rows)).encode())
        with RolloutServer(folder / "server", base, job) as server:
            server.wait_ready(START_SECONDS)
            # One sandbox for each episode, and one for the preflight.
            async with warm_pool(TO_BROKER, rows + 1, ENVIRONMENT, ENTRYPOINT, replaces=False) as pool:
                yield Stand(folder, server, url, pool, rows)
