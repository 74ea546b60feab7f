"""Measures vLLM alone, with requests that are known in advance. Each waits for the answer before it.

    python -m bench.evaluation.limit_side JSON     prints the time and the totals, as JSON

Bodies are encoded before the measurement, and answers are parsed after it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

JSON_BODY = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Settings:
    """The server and the work."""

    url: str
    key: str
    """The key of vLLM's port."""
    plan: str
    """File with the bodies of the requests and the tokens of their answers, by episode and turn."""
    places: int
    """Number of concurrent episodes."""


async def episode(
    http: aiohttp.ClientSession, url: str, headers: dict[str, str], bodies: list[bytes]
) -> list[bytes]:
    """Send the requests of one episode one after another, and return the answers."""
    found = []
    for body in bodies:
        async with http.post(url, data=body, headers=headers) as answer:
            text = await answer.read()
            assert answer.status == 200, text
            found.append(text)
    return found


async def run(settings: Settings, plan: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Run all episodes, in order."""
    encoded = [[json.dumps(turn["body"]).encode() for turn in turns] for turns in plan]
    left: Iterator[tuple[int, list[bytes]]] = iter([*enumerate(encoded)])
    answers: dict[int, list[bytes]] = {}
    headers = JSON_BODY | {"Authorization": f"Bearer {settings.key}"}
    in_episodes = 0.0

    async def place() -> None:
        nonlocal in_episodes
        for number, bodies in left:
            begun = time.monotonic()
            answers[number] = await episode(http, settings.url, headers, bodies)
            in_episodes += time.monotonic() - begun

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:
        started, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(place() for _ in range(settings.places)))
        spent = {"seconds": time.monotonic() - started, "cpu": time.process_time() - cpu}
    sampled = [[json.loads(text)["choices"][0]["token_ids"] for text in answers[n]] for n in range(len(plan))]
    wanted = [[turn["sampled"] for turn in turns] for turns in plan]
    return spent | {
        # This side does nothing between two calls, so both times are equal.
        "in_episodes": in_episodes,
        "in_calls": in_episodes,
        "episodes": len(plan),
        "turns": sum(map(len, sampled)),
        "prompt_tokens": sum(len(turn["body"]["token_ids"]) for turns in plan for turn in turns),
        "sampled_tokens": sum(len(tokens) for turns in sampled for tokens in turns),
        "solved": sum(found == tokens for found, tokens in zip(sampled, wanted, strict=True)),
    }


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    print(json.dumps(uvloop.run(run(settings, json.loads(Path(settings.plan).read_text())))), flush=True)


if __name__ == "__main__":
    main()
