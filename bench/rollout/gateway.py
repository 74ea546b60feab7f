"""Measures the token rate through the gateway relative to vLLM alone, with the same prompts, seeds and turns.

The gateway's side runs first. Agents send OpenAI's chat completions to it over HTTP. Then as many clients
send the gateway's requests to vLLM directly, as token ids, with equal prompts, seeds and cached prefixes.
Each pair of sides is repeated, and the result is the median ratio.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from ports import free_port
from role_keys import TO_ROLLOUT

from bench.support.engine import Server, running
from bench.support.model import SMALL
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import interval, shown
from headway_api.model_names import name_of
from headway_coordinator.engines.vllm import Request
from headway_coordinator.http import connector

Done = TypeVar("Done")

CONTEXT = 2048
SHORTEST, LONGEST = 8, 56
"""Minimum and maximum tokens sampled in a turn. Turns of equal length would all begin and end together."""
CELLS = {
    (1, 1): (24, 1),
    (1, 4): (10, 1),
    (1, 16): (5, 1),
    (16, 1): (8, 3),
    (16, 4): (5, 2),
    (16, 16): (3, 1),
    (64, 1): (6, 2),
    (64, 4): (3, 1),
    (64, 16): (2, 1),
}
"""(concurrent episodes, turns) -> number of pairs, and number of consecutive episodes at each place.

A run is long enough that the common start is a small part of it.
"""
OF_DIRECT = 0.99
START_SECONDS = 120.0

SYSTEM = "You are the clerk of a refund desk. Use the tools to look each case up, then answer in one line."
RESULT = '{"tier": "gold", "reason": "late", "amount": %d.5}'
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look a {noun} up.",
            "parameters": {
                "type": "object",
                "properties": {f"{noun}_id": {"type": "string"}},
                "required": [f"{noun}_id"],
            },
        },
    }
    for name, noun in (("get_case", "case"), ("get_credit", "customer"), ("get_stock", "item"))
]

READ = prose(f"""
    Episodes of 1, 4 and 16 turns, {SHORTEST} to {LONGEST} sampled tokens each, a tool's result between two
    turns. The gateway runs in a process of its own. Agents use OpenAI's chat completions over HTTP, each turn
    with the whole history and three tools. The first column says how many places run episode after episode.
    *Direct* sends what the gateway sent to `/inference/v1/generate` again, with the same prompts and seeds. A
    pair is one after the other; the ratio is the median over the pairs. Two cores hold all of it, so a pair
    is off by five parts in a hundred and more. A cell's ratio is too, so the goal is judged over all cells.

    The model has {SMALL.parameters / 1e6:.0f} M parameters. A token takes about as long as one of a 7 B model
    takes a GPU. vLLM computes on one core, so it is the limit, and not the client.
""")


@dataclass
class Side:
    """The result of one side of a pair."""

    seconds: float = 0.0
    tokens: int = 0
    turns: int = 0
    cpu: float = 0.0
    """CPU seconds of the gateway's process per turn."""
    output: list[list[list[int]]] = field(default_factory=list)
    """Sampled tokens, by episode and turn."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Rig:
    """A client of a gateway's process and of vLLM."""

    def __init__(self, http: aiohttp.ClientSession, gateway: str, server: Server) -> None:
        self._http = http
        self._gateway = gateway
        self._engine = f"{server.process.url}/inference/v1/generate"
        self._model = name_of(server.weights(1))

    async def through(self, name: str, ways: int, turns: int, rounds: int) -> tuple[Side, list[Any]]:
        """Run `rounds` episodes at each of `ways` places through the gateway.

        Returns:
            The result, and the gateway's requests to vLLM by episode.
        """
        urls = await self.open(name, ways * rounds)
        side, before = Side(), await self._ask("GET", f"{self._gateway}/bench/cpu")
        started = time.monotonic()
        episodes = [self._agent(url, f"{name}-{i}", turns, side) for i, url in enumerate(urls)]
        await at_once(episodes, ways)
        side.seconds = time.monotonic() - started
        side.cpu = (await self._ask("GET", f"{self._gateway}/bench/cpu") - before) / side.turns
        found = await self.close()
        assert not any(episode["forks"] for episode in found), "an episode was rendered anew"
        side.output = [[turn["sampled"] for turn in episode["turns"]] for episode in found]
        side.tokens = sum(len(turn) for episode in side.output for turn in episode)
        return side, found

    async def _agent(self, url: str, name: str, turns: int, side: Side) -> None:
        messages, lengths = opening(name), random.Random(name)
        for turn in range(turns):
            await self.turn(url, messages, turn, lengths.randint(SHORTEST, LONGEST))
            side.turns += 1

    async def turn(self, url: str, messages: list[dict[str, Any]], turn: int, tokens: int) -> float:
        """Play a turn, and return its seconds. Append the answer and the tool's result to `messages`."""
        started = time.monotonic()
        answer = await self._ask("POST", f"{url}/v1/chat/completions", asking(messages, tokens))
        took = time.monotonic() - started
        messages.append(answer["choices"][0]["message"])
        messages.append({"role": "tool", "tool_call_id": f"call-{turn}-0", "content": RESULT % turn})
        return took

    async def bare(self, messages: list[dict[str, Any]]) -> float:
        """Seconds of a turn's request to a route that answers at once, without any work."""
        started = time.monotonic()
        await self._ask("POST", f"{self._gateway}/bench/bare", asking(messages, LONGEST))
        return time.monotonic() - started

    async def direct(self, asked: list[Any], ways: int) -> Side:
        """Run the side of vLLM alone: sample the turns of `asked` again, with `ways` concurrent episodes."""
        side = Side()
        started = time.monotonic()
        side.output = await at_once([self._replay(episode, side) for episode in asked], ways)
        side.seconds = time.monotonic() - started
        side.tokens = sum(len(turn) for episode in side.output for turn in episode)
        return side

    async def _replay(self, episode: Any, side: Side) -> list[list[int]]:
        output = []
        for turn in episode["turns"]:
            output.append(await self.again(turn))
            side.turns += 1
        return output

    async def again(self, turn: Any) -> list[int]:
        """Send a turn's request to vLLM directly, and return the sampled tokens."""
        request = Request(turn["prompt"], len(turn["sampled"]), 1.0, 1.0, turn["seed"], [])
        answer = await self._ask("POST", self._engine, self._body(request))
        tokens: list[int] = answer["choices"][0]["token_ids"]
        return tokens

    async def open(self, name: str, episodes: int) -> list[str]:
        """Open episodes on the gateway, and return their addresses."""
        asked = {"name": name, "episodes": episodes, "max_tokens": LONGEST}
        urls: list[str] = await self._ask("POST", f"{self._gateway}/bench/open", asked)
        return urls

    async def exchanges(self) -> list[Any]:
        """The requests of the open episodes to vLLM, with their seconds."""
        found: list[Any] = await self._ask("GET", f"{self._gateway}/bench/exchanges")
        return found

    async def close(self) -> list[Any]:
        """End the open episodes, and return their requests to vLLM with the seconds."""
        found: list[Any] = await self._ask("POST", f"{self._gateway}/bench/close")
        return found

    def _body(self, request: Request) -> dict[str, Any]:
        """The body that the gateway's fleet sends, but with another salt.

        So neither side can use prefixes that the other side has cached.
        """
        return {
            "model": self._model,
            "cache_salt": "direct",
            "token_ids": request.prompt,
            "sampling_params": {
                "max_tokens": request.max_tokens,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "seed": request.seed,
                "logprobs": 0,
                "skip_special_tokens": False,
                "detokenize": False,
            },
        }

    async def _ask(self, method: str, url: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {TO_ROLLOUT}"} if url == self._engine else {}
        async with self._http.request(method, url, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


@asynccontextmanager
async def rig(server: Server, profile: Path | None = None) -> AsyncIterator[Rig]:
    """Run the gateway's process during the block. With `profile`, write a profile of it to that file."""
    settings = {
        "model": str(server.base),
        "engine": server.process.url,
        "agent": server.process.agent_url,
        "manifest": server.weights(1).model_dump(mode="json"),
        "port": free_port(),
        "context": CONTEXT,
        "profile": str(profile) if profile else None,
    }
    command = [sys.executable, "-m", "bench.rollout.gateway_process", json.dumps(settings)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            assert await process.stdout.readline(), "the gateway's process ended"
        limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector(), timeout=limit) as http:
            yield Rig(http, f"http://127.0.0.1:{settings['port']}", server)
    finally:
        process.stdin.close()
        await process.wait()


def asking(messages: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """The body of a chat-completion request for a turn."""
    return {"model": "default", "messages": messages, "tools": TOOLS, "max_tokens": tokens}


def opening(name: str) -> list[dict[str, Any]]:
    """The first messages of an episode."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Handle {name}."}]


async def at_once(episodes: Sequence[Coroutine[Any, Any, Done]], ways: int) -> list[Done]:
    """Run all episodes, `ways` at a time, and return their results in order."""
    places = asyncio.Semaphore(ways)

    async def run(episode: Coroutine[Any, Any, Done]) -> Done:
        async with places:
            return await episode

    return await asyncio.gather(*map(run, episodes))


async def pairs(rig: Rig, ways: int, turns: int, count: int, rounds: int) -> list[tuple[Side, Side]]:
    """Measure `count` pairs of sides, one after another."""
    found = []
    for number in range(count):
        through, asked = await rig.through(f"{ways}x{turns}-{number}", ways, turns, rounds)
        found.append((through, await rig.direct(asked, ways)))
    return found


def ratios_of(found: list[tuple[Side, Side]]) -> list[float]:
    """The gateway's rate divided by the direct rate, by pair."""
    return [through.rate / direct.rate for through, direct in found]


def row(ways: int, turns: int, found: list[tuple[Side, Side]]) -> Row:
    """The table's row for one cell of `CELLS`."""
    ratios = ratios_of(found)
    same = [
        a == b
        for t, d in found
        for one, two in zip(t.output, d.output, strict=True)
        for a, b in zip(one, two, strict=True)
    ]
    return {
        "episodes at once": ways,
        "turns": turns,
        "pairs": len(found),
        "episodes a side": len(found[0][0].output),
        "gateway / direct": shown(statistics.median(ratios), 4),
        "least .. most": f"{min(ratios):.3f} .. {max(ratios):.3f}",
        "gateway tokens/s": shown(statistics.median(t.rate for t, _ in found)),
        "direct tokens/s": shown(statistics.median(d.rate for _, d in found)),
        "gateway CPU ms a turn": shown(1000 * statistics.median(t.cpu for t, _ in found)),
        "same tokens": f"{sum(same)}/{len(same)}",
    }


def section(rows: list[Row], ratios: list[list[float]]) -> Section:
    """The section of the cells, with its table and goal; `ratios` by cell and pair."""
    overall = statistics.geometric_mean(r["gateway / direct"] for r in rows)
    least, maximum = interval(ratios)
    lowest = min(r["gateway / direct"] for r in rows)
    return Section(
        title="Gateway over vLLM alone",
        read=READ,
        tables=[Table("Tokens a second", rows)],
        goals=[
            Goal(
                f"gateway at least {OF_DIRECT} of direct, over all cells",
                f"{overall:.3f} (geometric mean, 95 % in {least:.3f} .. {maximum:.3f}; lowest cell {lowest})",
                overall >= OF_DIRECT,
            ),
        ],
    )


def measure(folder: Path) -> Section:
    """Measure all cells: pairs of the gateway and vLLM alone."""
    return section(*asyncio.run(_measure(folder)))


async def _measure(folder: Path) -> tuple[list[Row], list[list[float]]]:
    rows, ratios = [], []
    with running(folder, SMALL, context=CONTEXT, concurrency=64) as server:
        async with rig(server) as at:
            await pairs(at, 4, 4, 1, 1)
            for (ways, turns), (count, rounds) in CELLS.items():
                both = await pairs(at, ways, turns, count, rounds)
                rows.append(row(ways, turns, both))
                ratios.append(ratios_of(both))
                print(f"  {ways} x {turns}: {rows[-1]['gateway / direct']}", flush=True)
    return rows, ratios
