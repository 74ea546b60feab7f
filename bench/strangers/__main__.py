"""Sends hostile requests to each route of a turn: `python -m bench.strangers` writes the page and its
numbers.

Each route gets its own gateway in a separate process, with a model that returns scripted answers.
HOSTILE_CASES is the number of requests. With the same HOSTILE_SEED, the requests are the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
from bent_requests import bent, heavy

from bench.support import machine

RESULTS = Path(__file__).parents[1] / "results"
ROUTES = (
    *("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"),
    "/v1/completions",
)
CASES = int(os.environ.get("HOSTILE_CASES", "10000"))
SEED = os.environ.get("HOSTILE_SEED", "1")
HEAVY = 0.02
SIZE = 6 * 2**20
"""Bytes of a large request. The share of such requests is `HEAVY`."""
WARM = 200
"""Number of requests before the measurement begins."""
MAX_PAUSE, MAX_BYTES = 0.1, 64 * 2**20


async def send(url: str, path: str, chance: random.Random, count: int) -> None:
    """Send requests one after another, each on its own connection, because invalid HTTP ends a connection."""
    for _ in range(count):
        large = chance.random() < HEAVY
        data, headers = (heavy(path, chance, SIZE), {}) if large else bent(path, chance)
        try:
            timeout = aiohttp.ClientTimeout(total=2 if "Content-Encoding" in headers else 60)
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.post(url + path, data=data, headers=headers) as answer,
            ):
                await answer.read()
        except TimeoutError:
            assert "Content-Encoding" in headers, f"no answer: {data[:300]!r}"
        except aiohttp.ClientError:
            continue  # the gateway closed the connection, because the request was not HTTP


async def measure(path: str) -> dict[str, Any]:
    """Measure one route, and return its numbers."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.strangers.gateway"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    url = json.loads(await process.stdout.readline())["url"]
    chance = random.Random(f"{SEED}/{path}")
    await send(url, path, chance, WARM)
    process.stdin.write(b"\n")
    await process.stdout.readline()
    began = time.perf_counter()
    await send(url, path, chance, CASES)
    seconds = time.perf_counter() - began
    process.stdin.write(b"\n")
    numbers: dict[str, Any] = json.loads(await process.stdout.readline())
    process.stdin.close()
    await process.wait()
    return numbers | {"requests": CASES, "seconds": seconds}


def page(found: dict[str, dict[str, Any]]) -> str:
    """The page with the numbers, as Markdown."""
    lines = [
        "# What strangers' requests cost the gateway",
        "",
        f"Made by `make bench-strangers` with HOSTILE_SEED={SEED} at commit {machine.commit()} on "
        f"{date.today()}: {machine.described()}. Each route gets {CASES:,} requests: good "
        "ones, bent at random in up to three places, cut short or packed. "
        f"Of them {HEAVY:.0%} are large: {SIZE // 2**20} MiB of text, 190,000 token ids, "
        "nearly 100,000 small values (messages, parts, calls, items, properties of a tool, unknown fields), "
        "or a schema that would take long to compile. The gateway has a process of its own, a context of "
        "4,000 tokens, and a "
        "model whose words are written. The longest pause is how long the process itself kept its event "
        "loop from other work. What else ran on the machine is left out.",
        "",
        f"Goals: no answer of 5xx, no pause above {1000 * MAX_PAUSE:.0f} ms, at most "
        f"{MAX_BYTES // 2**20} MiB more memory at the peak.",
        "",
        "| route | 200 | 4xx | 5xx | longest pause | pauses above 50 ms | memory | CPU a request |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path, one in found.items():
        statuses = {int(status): count for status, count in one["statuses"].items()}
        kinds = [
            sum(count for status, count in statuses.items() if status // 100 == kind) for kind in (2, 4, 5)
        ]
        lines.append(
            f"| `{path}` | {kinds[0]:,} | {kinds[1]:,} | {kinds[2]:,} | "
            f"{1000 * one['longest_pause_seconds']:.0f} ms | {one['pauses_above_50_ms']} | "
            f"{one['peak_bytes'] / 2**20:.0f} MiB | {1000 * one['cpu_seconds'] / one['requests']:.1f} ms |"
        )
    lines += [
        "",
        "Requests that are not HTTP are refused before they reach a route, and stand in no column.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    found = {path: asyncio.run(measure(path)) for path in ROUTES}
    (RESULTS / "strangers.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "strangers.md").write_text(page(found))
    missed = [
        path
        for path, one in found.items()
        if one["faults"]
        or any(int(status) >= 500 for status in one["statuses"])
        or one["longest_pause_seconds"] > MAX_PAUSE
        or one["peak_bytes"] > MAX_BYTES
    ]
    print((RESULTS / "strangers.md").read_text())
    print(f"goals missed by: {', '.join(missed)}" if missed else "all goals are met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
