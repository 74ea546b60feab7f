"""An engine that hangs while its process still answers.

The server detects it by its counters, and kills it as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from role_keys import KEYS
from served_weights import Server
from versions import whole

from headway_api.config import ServedModel
from headway_rollout import hang
from headway_rollout import server as servers
from headway_rollout.engine import Engine, EngineError
from headway_rollout.hang import HUNG_SECONDS, EngineProgress, EngineStall, after, read
from headway_rollout.process import EngineProcess
from headway_rollout.server import RolloutServer, Settings

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="base"}} {running}
vllm:num_requests_running{{engine="1",model_name="base"}} 1.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="base"}} 30.0
vllm:prompt_tokens_by_source_total{{engine="0",model_name="base",source="local_compute"}} 999.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="base"}} 4.0
vllm:generation_tokens_total{{engine="1",model_name="base"}} 2.0
"""


def test_vllms_metrics_are_read() -> None:
    assert read(METRICS.format(running=3.0)) == EngineProgress(running=4.0, tokens=36.0)


@pytest.mark.parametrize("text", ["", METRICS.format(running="NaN"), METRICS.replace("generation", "other")])
def test_incomplete_metrics_give_no_reading(text: str) -> None:
    assert read(text) is None


STILL = EngineStall(since=10.0, tokens=5.0)


@pytest.mark.parametrize(
    ("before", "progress", "expected"),
    [
        (STILL, EngineProgress(1, 5), STILL),
        (STILL, EngineProgress(7, 5), STILL),  # more requests wait, and no token was added
        (STILL, EngineProgress(1, 6), EngineStall(20.0, 6)),
        (STILL, EngineProgress(0, 5), None),  # it is idle
        (STILL, None, None),  # paused, or it reports no progress
        (None, EngineProgress(1, 5), EngineStall(20.0, 5)),
        (None, EngineProgress(0, 5), None),
    ],
)
def test_a_stall_follows_from_progress_and_the_earlier_stall(
    before: EngineStall | None, progress: EngineProgress | None, expected: EngineStall | None
) -> None:
    assert after(before, progress, 20.0) == expected


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=50))
def test_a_computing_or_idle_engine_never_counts_as_hanging(
    looks: list[tuple[bool, int]],
) -> None:
    """The stall begins no earlier than the last look at which the engine had computed tokens or was idle."""
    stall, tokens, moved = None, 0, 0.0
    for now, (busy, computed) in enumerate(looks, start=1):
        tokens += computed
        if computed or not busy:
            moved = float(now)
        stall = after(stall, EngineProgress(float(busy), tokens), float(now))
        assert stall is None or stall.since >= moved


class Counting(Engine):
    """An engine whose counters the test sets."""

    def __init__(self) -> None:
        self.suspended = False
        self.looks = 0
        self.count: Callable[[int], float | None] = lambda look: 0.0
        """The token count by the number of the look. None if the engine does not answer."""
        self.running = 2.0
        self.asked = 0
        self.answers = True
        """Whether requests for a token are answered."""

    async def next_logprob(self, model: str, context: list[int], token: int) -> float:
        self.asked += 1
        if not self.answers:
            await asyncio.Event().wait()
        return -1.0

    async def metrics(self, seconds: float = 0.0) -> str:
        self.looks += 1
        tokens = self.count(self.looks)
        if tokens is None:
            raise EngineError("GET /metrics: TimeoutError")
        named = zip((hang.RUNNING, hang.PROMPT, hang.GENERATED), (self.running, 7.0, tokens), strict=True)
        return "".join(f'{name}{{engine="0"}} {value}\n' for name, value in named)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(hang, "HUNG_SECONDS", 0.15)
    monkeypatch.setattr(hang, "PROBE_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("running", [2.0, 0.0], ids=["with requests", "idle"])
@pytest.mark.parametrize("answers", [True, False], ids=["says so", "answers nothing"])
async def test_an_engine_that_stops_computing_hangs(answers: bool, running: float) -> None:
    engine = Counting()
    engine.count = lambda look: float(look) if look < 20 else 20.0 if answers else None
    engine.running = running
    engine.answers = running > 0
    async with asyncio.timeout(5):
        assert "no token" in await hang.found(engine)
    assert engine.looks > 20


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("why", ["idle", "held", "held and silent", "computing"])
async def test_an_idle_held_or_computing_engine_does_not_hang(why: str) -> None:
    engine = Counting()
    engine.running = 0.0 if why == "idle" else 2.0
    engine.suspended = why.startswith("held")
    engine.count = {"computing": float, "held and silent": lambda look: None}.get(why, engine.count)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await hang.found(engine)


@pytest.mark.usefixtures("impatient")
async def test_a_hang_on_the_first_request_is_found_if_none_is_counted() -> None:
    engine = Counting()
    engine.running = 0.0
    engine.count = lambda look: setattr(engine, "answers", look < 20) or 0.0
    async with asyncio.timeout(5):
        assert "no token" in await hang.found(engine)
    assert engine.looks > 20
    assert engine.asked > 2, "it was asked now and then while it answered"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("pauses", [False, True])
async def test_an_engine_in_use_gets_no_extra_request(pauses: bool) -> None:
    engine = Counting()

    def count(look: int) -> float:
        engine.running = float(look % 2) if pauses else 1.0
        return look

    engine.count = count
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await hang.found(engine)
    assert engine.asked == 1, "when it started"


class Process:
    """An engine's process that ends when it is killed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.killed = asyncio.Event()

    async def ended(self) -> int:
        await self.killed.wait()
        return 137

    async def kill(self) -> None:
        self.killed.set()


@pytest.mark.usefixtures("impatient")
async def test_a_server_kills_a_hanging_engine_reports_it_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "REPORT_SECONDS", 0.0)
    held, process = Server(tmp_path), Process()
    server = RolloutServer(cast(ServedModel, None), KEYS, cast(Settings, None))
    await held.take(whole(tmp_path, 1))
    assert held.state.ready
    watching = server._watch(Counting(), held.slots, cast(EngineProcess, process))
    with pytest.raises(Exception, match="no token") as ended:
        await asyncio.wait_for(watching, 5)
    error: Any = ended.value
    assert (error.termination.reason, error.permanent) == ("EngineHung", False)
    assert process.killed.is_set()
    state = held.state
    assert (state.ready, state.version) == (False, None)
    assert state.error is not None
    assert state.error.startswith("EngineHung: ")
    assert await held.take(whole(tmp_path, 2)) == state, "nothing may bring such an engine back"


async def test_a_load_interrupted_by_a_hang_does_not_hide_it(tmp_path: Path) -> None:
    held = Server(tmp_path)
    await held.take(whole(tmp_path, 1))

    def hangs(context: list[int]) -> float:
        held.slots.hung("no token")
        return -9.0

    held.engine.answers = hangs
    state = await held.take(whole(tmp_path, 2))
    assert (state.ready, state.error) == (False, "EngineHung: no token")
    assert held.slots.failed.result().termination.reason == "EngineHung"


async def test_an_engine_is_held_from_pause_to_resume_and_in_joining(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(cast(Any, None), "http://engine")
    seen: list[tuple[str, bool]] = []

    async def post(path: str, body: Any, seconds: float) -> Any:
        seen.append((path.partition("?")[0], engine.suspended))
        return {"results": [None]}

    monkeypatch.setattr(engine, "_post", post)
    await engine.join("learner", cast(Any, type("Place", (), {"model_dump_json": lambda self: "{}"})()))
    await engine.pause()
    await engine.update_weights("folder", [], None, "0.1")
    await engine.resume()
    held = {path for path, was in seen if was}
    assert {"/collective_rpc", "/update_weights", "/resume"} <= held
    assert "/pause" not in held
    assert not engine.suspended


def test_a_hang_lasts_longer_than_ten_looks() -> None:
    assert hang.LOOK_SECONDS * 10 < HUNG_SECONDS
