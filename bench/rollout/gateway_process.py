"""Runs the gateway as a separate process, with the settings of the coordinator's pod. `gateway.py` starts it.

    python -m bench.rollout.gateway_process JSON     prints one line once it listens

Besides the agents' routes, it has routes that open and close episodes, and report their tokens and times.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web
from role_keys import TO_ROLLOUT

from headway_api.records import WeightsManifest
from headway_api.sandbox_api import ToolReply
from headway_api.seeds import seed
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.engines import vllm
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.gateway.rollouts import Rollout
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.http import call, connector
from headway_coordinator.trajectory.render import load

EPISODE_SECONDS = 600.0


class NoSandbox:
    """Replaces the sandbox, and refuses every tool call: these agents have their own tools."""

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        raise LookupError(f"the environment has no tool {name}")


class Desk:
    """Opens episodes, and closes all of them together."""

    def __init__(self, server: GatewayServer, backend: Backend, fleet: Fleet, url: str) -> None:
        self._server = server
        self._backend = backend
        self._fleet = fleet
        self._url = url
        self._open = AsyncExitStack()
        self._rollouts: list[Rollout] = []

    async def open(self, request: web.Request) -> web.Response:
        asked = await request.json()
        for number in range(asked["episodes"]):
            name = f"{asked['name']}-{number}"
            rollout = Rollout(
                session=Session(name, seed("bench", name), Sampling(1.0, 1.0, asked["max_tokens"])),
                job_arn="bench",
                sandbox=NoSandbox(),
                tools=[],
                reward_range=(0.0, 1.0),
                takes_reward=True,
                expires_at=time.monotonic() + EPISODE_SECONDS,
            )
            opened = self._server.open(rollout, self._backend)
            self._rollouts.append(await self._open.enter_async_context(opened))
        return web.json_response([f"{self._url}/e/{rollout.token}" for rollout in self._rollouts])

    async def exchanges(self, _request: web.Request) -> web.Response:
        """The engine's requests and answers so far, by episode and turn."""
        return web.json_response([_recorded(rollout.session) for rollout in self._rollouts])

    async def close(self, _request: web.Request) -> web.Response:
        """End the open episodes. Answer with the engine's requests and answers, by episode and turn."""
        sessions = [rollout.session for rollout in self._rollouts]
        await self._open.aclose()
        for session in sessions:
            self._fleet.router.forget(session.episode_id)
        self._open, self._rollouts = AsyncExitStack(), []
        return web.json_response([_recorded(session) for session in sessions])

    async def bare(self, request: web.Request) -> web.Response:
        """Answer at once without any work, to measure HTTP alone."""
        return web.json_response(await request.json())

    async def cpu(self, _request: web.Request) -> web.Response:
        return web.json_response(time.process_time())


def _recorded(session: Session) -> dict[str, Any]:
    turns = [
        {
            "prompt": turn.prompt,
            "sampled": turn.sampled,
            "seed": seed(session.seed, number),
            "seconds": _engine_seconds.get(seed(session.seed, number)),
        }
        for number, turn in enumerate(session.recorded_turns)
    ]
    return {"turns": turns, "forks": session.forks}


_engine_seconds: dict[int, float] = {}
"""Seed of a turn -> seconds of its call to vLLM."""


async def _timed_call(http: aiohttp.ClientSession, method: str, url: str, **options: Any) -> Any:
    started = time.monotonic()
    answer = await call(http, method, url, **options)
    _engine_seconds[options["body"]["sampling_params"]["seed"]] = time.monotonic() - started
    return answer


async def serve(settings: dict[str, Any]) -> None:
    """Serve until the parent closes standard input, or the process is killed."""
    vllm.call = _timed_call
    manifest = WeightsManifest.model_validate(settings["manifest"])
    renderer, _ = load(Path(settings["model"]))

    async def discover() -> set[Endpoint]:
        return {Endpoint(settings["engine"], settings["agent"])}

    async with aiohttp.ClientSession(connector=connector()) as http:
        fleet = Fleet(http, TO_ROLLOUT, discover)
        keeping = asyncio.create_task(fleet.run())
        await fleet.want(manifest)
        await fleet.ready()
        gateway = Gateway(renderer, fleet, settings["context"], EPISODE_SECONDS)
        server = GatewayServer()
        desk = Desk(
            server,
            Backend(gateway, TurnLimiter(AdaptiveSemaphore(1024))),
            fleet,
            f"http://127.0.0.1:{settings['port']}",
        )
        app = server.app()
        app.router.add_post("/bench/open", desk.open)
        app.router.add_post("/bench/close", desk.close)
        app.router.add_get("/bench/exchanges", desk.exchanges)
        app.router.add_post("/bench/bare", desk.bare)
        app.router.add_get("/bench/cpu", desk.cpu)
        # Use the same settings as the coordinator.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", settings["port"]).start()
        print(json.dumps({"renderer": renderer.name}), flush=True)
        # Wait until the parent process closes the pipe.
        await asyncio.to_thread(sys.stdin.read)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await runner.cleanup()


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings.get("profile") is None:
        uvloop.run(serve(settings))
        return
    with cProfile.Profile() as profile:
        uvloop.run(serve(settings))
    profile.dump_stats(settings["profile"])


if __name__ == "__main__":
    main()
