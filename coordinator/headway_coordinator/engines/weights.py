"""Client of the weight agent beside a rollout server: what it holds, and making it take a version."""

from __future__ import annotations

import aiohttp

from headway_api.records import WeightsManifest, WeightsState
from headway_coordinator.http import call

ASK_SECONDS = 5.0
LOAD_SECONDS = 600.0
"""Longest a load may take, download included; a server that needs longer is taken for stuck."""


async def state(http: aiohttp.ClientSession, url: str, token: str) -> WeightsState:
    """What the server holds, by its own measurement."""
    return WeightsState.model_validate(
        await call(http, "GET", f"{url}/v1/weights", timeout=ASK_SECONDS, token=token)
    )


async def load(http: aiohttp.ClientSession, url: str, token: str, manifest: WeightsManifest) -> WeightsState:
    """Make the server fetch, verify and take `manifest`; returns once it has, or has failed to."""
    body = manifest.model_dump(mode="json")
    answer = await call(http, "POST", f"{url}/v1/weights", timeout=LOAD_SECONDS, token=token, body=body)
    return WeightsState.model_validate(answer)
