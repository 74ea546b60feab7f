"""Serves vLLM's own metrics to scrapers, on a port that answers nothing else.

vLLM's port has development endpoints that replace the weights, so only the job's coordinator may use it.
Scrapers use this port instead. Each GET of /metrics is forwarded to vLLM over loopback, and its answer is
returned unchanged. No other path, method, query or header is forwarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from headway_rollout.engine import Engine, EngineError

ANSWER_SECONDS: Final = 8.0
"""Maximum seconds that a scrape waits. Prometheus gives up after 10 s by default."""
MAX_BYTES: Final = 16 << 20
"""Maximum bytes of vLLM's metrics: a hundred times their size when vLLM has just started."""


def application(engine: Callable[[], Engine | None]) -> web.Application:
    """An application with the one route /metrics, which needs no key.

    `engine` returns None while vLLM loads the base model; scrapes then get 503.
    """
    one_at_a_time = asyncio.Lock()

    async def metrics(_request: web.Request) -> web.Response:
        found = engine()
        if found is None:
            return web.Response(status=503, text="vLLM is still loading the base model\n")
        try:
            async with asyncio.timeout(ANSWER_SECONDS), one_at_a_time:
                text = await found.exposition(ANSWER_SECONDS, MAX_BYTES)
        except EngineError as error:
            return web.Response(status=502, text=f"{error}\n")
        except TimeoutError:
            return web.Response(status=504, text=f"vLLM did not answer within {ANSWER_SECONDS:.0f} s\n")
        return web.Response(body=text.content, headers={"Content-Type": text.content_type})

    app = web.Application()
    app.router.add_get("/metrics", metrics, allow_head=False)
    return app
