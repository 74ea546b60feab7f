"""What the agents here share: their HTTP service, and the calls to the platform.

Each agent runs it with its own Python interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.request import Request as Call
from urllib.request import urlopen

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

Act = Callable[[dict[str, Any]], Any]
"""The agent: it takes the platform's document and plays the episode, as a plain or a coroutine function."""

Play = Callable[[dict[str, Any]], Awaitable[str]]
"""The agent without its protocol: it takes the platform's document and returns the answer."""

_running: set[asyncio.Task[Any]] = set()


def reporting(play: Play) -> Act:
    """An agent that completes its rollout, and reports a reward of 1 if its answer contains `gold`."""

    async def act(payload: dict[str, Any]) -> Any:
        metadata = payload["metadata"]
        ids = {"JobArn": metadata["jobArn"], "TrajectoryId": metadata["rolloutId"]}
        try:
            answer = await play(payload)
        except Exception as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"[:2000]
            done = ids | {"Status": "failed", "ErrorMessage": why}
            await asyncio.to_thread(post, f"{metadata['endpoint']}/complete-rollout", done)
            return {"error": why}
        await asyncio.to_thread(post, f"{metadata['endpoint']}/complete-rollout", ids | {"Status": "ready"})
        reward = ids | {"Rewards": [1.0 if "gold" in answer else 0.0]}
        await asyncio.to_thread(post, f"{metadata['endpoint']}/update-reward", reward)
        return {"answer": answer}

    return act


def post(url: str, document: dict[str, Any]) -> None:
    """Post a document, and raise an error if it is refused."""
    call = Call(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    with urlopen(call, timeout=30):
        pass


def serve(act: Act) -> None:
    """Serve `act` on the port that the command line names.

    POST /at-once is answered before the work begins. POST /at-end is answered when it is done, with 500 if it
    failed.
    """

    async def run(payload: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(act):
            return await act(payload)
        return await run_in_threadpool(act, payload)

    async def taken(request: Request) -> dict[str, Any]:
        payload: dict[str, Any] = await request.json()
        print("rollout taken", payload["metadata"]["rolloutId"], flush=True)
        return payload

    async def at_end(request: Request) -> JSONResponse:
        return JSONResponse(await run(await taken(request)))

    async def at_once(request: Request) -> JSONResponse:
        task = asyncio.create_task(run(await taken(request)))
        _running.add(task)
        task.add_done_callback(_running.discard)
        return JSONResponse({"status": "accepted"})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "healthy"})

    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    routes = [
        Route("/at-end", at_end, methods=["POST"]),
        Route("/at-once", at_once, methods=["POST"]),
        Route("/health", health),
    ]
    port = parser.parse_args().port
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="warning")
