"""The learner's client turns hostile answers of a coordinator into typed faults.

A failure prints its seed. HOSTILE_SEED=n repeats it, and HOSTILE_CASES=n generates more answers.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import Iterator

import learner_rig as rig
import pytest
from evil_replies import MIB, Evil, Server, bomb, everywhere, evil_server, grown, whole
from memory import flat, kept
from role_keys import TO_COORDINATOR

from headway_api.exits import JobError
from headway_trainer import coordinator_client as client
from headway_trainer.coordinator_client import CoordinatorClient, StepNotAnnouncedError

pytestmark = pytest.mark.hostile

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
CASES = int(os.environ.get("HOSTILE_CASES", "40"))
HANGS = 30.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST_PAUSE", 0.01), ("LONGEST_PAUSE", 0.02), ("SILENCE", 0.5), ("WHOLE", 0.5)):
        monkeypatch.setattr(client, name, value)
    monkeypatch.setattr(client, "MAX_PACKED", 8 * MIB)
    monkeypatch.setattr(client, "CONTAINERS", 1_000_000)


async def polled(server: Server, evil: Evil) -> None:
    """Ask for a batch once. The result must be a batch, None or a typed fault."""
    server.evil = evil
    here = CoordinatorClient(server.url, TO_COORDINATOR)
    message = ""
    try:
        async with asyncio.timeout(HANGS):
            await asyncio.to_thread(here.poll, 1, 0.1)
    except (JobError, StepNotAnnouncedError) as fault:
        message = str(fault)
    except Exception as error:
        raise AssertionError(f"HOSTILE_SEED={SEED}: {evil.name}") from error
    assert len(message) < 8000, evil.name


def patient() -> list[Evil]:
    """Answers for which a learner may wait: an endless head, and an endless refusal."""

    def asked_to_go_on() -> Iterator[bytes | float]:
        while True:
            yield b"HTTP/1.1 100 Continue\r\n\r\n" * 10
            yield 0.01

    def refusing() -> Iterator[bytes | float]:
        yield b"HTTP/1.1 409 Conflict\r\nContent-Length: 1000000\r\n\r\n"
        while True:
            yield b"a"
            yield 0.05

    return [
        Evil("asked to go on for ever", asked_to_go_on, slow=True),
        Evil("a refusal that drips", refusing, slow=True),
    ]


async def test_an_evil_answer_is_a_typed_fault_and_costs_little() -> None:
    evils = [*everywhere(), *patient()]
    good = json.loads(rig.batch(1).model_dump_json())
    async with evil_server() as server:
        await polled(server, whole("first", b"{}"))
        with kept(64 * MIB):
            for evil in evils:
                with flat(64 * MIB):
                    await polled(server, evil)
            with flat(64 * MIB):
                for evil in grown(good, SEED, CASES):
                    await polled(server, evil)


async def test_a_compression_bomb_is_refused() -> None:
    async with evil_server() as server:
        with flat(64 * MIB):
            await polled(server, whole("a bomb", bomb(128 * MIB), "200 OK", "Content-Encoding: gzip"))
        server.evil = whole("a bomb", bomb(128 * MIB), "200 OK", "Content-Encoding: gzip")
        with pytest.raises(JobError, match=r"cannot be read: more than [0-9]+ bytes, decompressed"):
            await asyncio.to_thread(CoordinatorClient(server.url, TO_COORDINATOR).poll, 1, 0.1)


async def test_a_batch_that_compresses_well_is_read() -> None:
    packed = gzip.compress(rig.batch(1).model_dump_json().encode() + b" " * MIB)
    async with evil_server() as server:
        server.evil = whole("good", packed, "200 OK", "Content-Encoding: gzip")
        found = await asyncio.to_thread(CoordinatorClient(server.url, TO_COORDINATOR).poll, 1, 0.1)
    assert found == rig.batch(1)


async def test_a_redirect_is_not_followed() -> None:
    """A redirect would send the token to another host."""
    async with evil_server() as server, evil_server() as other:
        server.evil = whole("a redirect", b"", "302 There", f"Location: {other.url}/v1/batch")
        with pytest.raises(JobError, match="was answered 302"):
            await asyncio.to_thread(CoordinatorClient(server.url, TO_COORDINATOR).poll, 1, 0.1)
        assert other.heads == []
