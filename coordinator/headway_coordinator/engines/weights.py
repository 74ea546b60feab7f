"""Client of a rollout server's weight agent: reads which weights the server holds, and has it load others."""

from __future__ import annotations

import aiohttp

from headway_api.model_names import POLICY
from headway_api.records import WeightsManifest, WeightsState
from headway_coordinator.http import call

ASK_SECONDS = 5.0
LOAD_SECONDS = 600.0
"""The most seconds of a load, download included. A server that needs longer counts as stuck."""


async def state(http: aiohttp.ClientSession, url: str, token: str, slot: str = POLICY) -> WeightsState:
    """The weights in a server's slot, as the weight agent verified them."""
    return WeightsState.model_validate(
        await call(http, "GET", _place(url, slot), timeout=ASK_SECONDS, token=token)
    )


async def load(
    http: aiohttp.ClientSession, url: str, token: str, manifest: WeightsManifest, slot: str = POLICY
) -> WeightsState:
    """Make the server fetch, verify and use the weights of `manifest`. Returns once it has, or has failed."""
    body = manifest.model_dump(mode="json")
    answer = await call(http, "POST", _place(url, slot), timeout=LOAD_SECONDS, token=token, body=body)
    return WeightsState.model_validate(answer)


async def release(http: aiohttp.ClientSession, url: str, token: str, slot: str) -> None:
    """Have the server release a slot, once no request uses its weights."""
    await call(http, "DELETE", _place(url, slot), timeout=ASK_SECONDS, token=token)


def _place(url: str, slot: str) -> str:
    """The URL of a slot. The trained policy's has no parameter."""
    return f"{url}/v1/weights" if slot == POLICY else f"{url}/v1/weights?slot={slot}"
