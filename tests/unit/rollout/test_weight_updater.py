"""What the updater reports when a step of a load fails. The engine is scripted. Files and store are real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway_api.records import Canary, PolicyVersion, WeightsManifest
from headway_api.store import FileStore, Store, digest, download_folder
from headway_rollout.engine import Engine, EngineError
from headway_rollout.weights.checks import UnusableManifestError
from headway_rollout.weights.updater import WeightUpdater

LOGPROBS = [-1.0, -2.0]


class ScriptedEngine(Engine):
    """An engine whose log-probabilities the test sets."""

    def __init__(self) -> None:
        self.answers: Callable[[list[int]], float] = lambda context: LOGPROBS[len(context) - 1]

    async def next_logprob(self, model: str, context: list[int], token: int) -> float:
        return self.answers(context)


class ScriptedLoader:
    """A loader that takes all weights, unless a flag makes it fail."""

    kinds = ("lora",)

    def __init__(self) -> None:
        self.loaded: list[PolicyVersion] = []
        self.dropped: list[PolicyVersion] = []
        self.unusable = False
        self.keeps = False
        self.refuses = False
        self.busy = 0

    def holds(self, manifest: WeightsManifest) -> bool:
        return manifest.version in self.loaded

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        download_folder(store, manifest.uri, folder, manifest.files)
        if self.unusable:
            raise UnusableManifestError("not this model's")

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        assert (folder / "a.safetensors").exists()
        self.busy += 1
        assert self.busy == 1, "two loads at once"
        await asyncio.sleep(0)
        self.busy -= 1
        if self.refuses:
            raise EngineError("no")
        self.loaded.append(manifest.version)

    def model(self, manifest: WeightsManifest) -> str:
        return str(manifest.version)

    async def tidy(self) -> None:
        return None

    async def drop(self, manifest: WeightsManifest) -> None:
        self.dropped.append(manifest.version)
        if self.keeps:
            raise EngineError("not now")

    async def release(self) -> bool:
        self.loaded.clear()
        return not self.keeps


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def loader() -> ScriptedLoader:
    return ScriptedLoader()


@pytest.fixture
async def updater(engine: ScriptedEngine, loader: ScriptedLoader, tmp_path: Path) -> WeightUpdater:
    return WeightUpdater(engine, loader, FileStore(), tmp_path / "cache")


def v(step: int) -> PolicyVersion:
    return PolicyVersion(incarnation=0, step=step)


def manifest(tmp_path: Path, step: int, **changes: Any) -> WeightsManifest:
    path = tmp_path / "store" / f"{step}" / "a.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([step]))
    content: dict[str, Any] = {
        "version": v(step),
        "kind": "lora",
        "uri": f"file://{path.parent}",
        "files": [digest(path)],
        "canary": Canary(tokens=[5, 6, 7], logprobs=LOGPROBS, tolerance=0.01),
    }
    return WeightsManifest.model_validate(content | changes)


async def test_weights_that_are_proven_are_held(updater: WeightUpdater, tmp_path: Path) -> None:
    assert not updater.state.ready
    state = await updater.take(manifest(tmp_path, 1))
    assert (state.version, state.ready, state.error, state.canary_error) == (v(1), True, None, 0.0)
    assert updater.state == state


async def test_held_weights_are_not_loaded_again(
    updater: WeightUpdater, loader: ScriptedLoader, tmp_path: Path
) -> None:
    first = await updater.take(manifest(tmp_path, 1))
    assert await updater.take(manifest(tmp_path, 1)) == first
    assert loader.loaded == [v(1)]


async def test_manifests_are_taken_one_at_a_time(
    updater: WeightUpdater, loader: ScriptedLoader, tmp_path: Path
) -> None:
    await asyncio.gather(*(updater.take(manifest(tmp_path, step)) for step in range(1, 6)))
    assert sorted(loader.loaded) == [v(step) for step in range(1, 6)]


@pytest.mark.parametrize("fault", ["digest", "missing", "unusable", "kind"])
async def test_unusable_files_leave_the_engine_unchanged(
    updater: WeightUpdater, loader: ScriptedLoader, tmp_path: Path, fault: str
) -> None:
    before = await updater.take(manifest(tmp_path, 1))
    bad = manifest(tmp_path, 2, **({"kind": "full"} if fault == "kind" else {}))
    file = tmp_path / "store" / "2" / "a.safetensors"
    loader.unusable = fault == "unusable"
    if fault == "digest":
        file.write_bytes(b"x")
    elif fault == "missing":
        file.unlink()
    state = await updater.take(bad)
    assert (state.version, state.ready) == (before.version, True)
    assert state.error
    assert state.reason == ("UpdateFailed" if fault == "missing" else "VerificationFailed")
    assert not updater.failed.done()
    loader.unusable = False
    again = await updater.take(manifest(tmp_path, 2))
    assert (again.version, again.error, again.reason) == (v(2), None, None), "a second try must succeed"


@pytest.mark.parametrize("answer", [-1.5, float("nan"), float("-inf"), -9999.0])
async def test_a_canary_outside_its_tolerance_is_final(
    updater: WeightUpdater, engine: ScriptedEngine, tmp_path: Path, answer: float
) -> None:
    await updater.take(manifest(tmp_path, 1))
    engine.answers = lambda context: answer
    state = await updater.take(manifest(tmp_path, 2))
    assert not state.ready
    assert state.version is None
    assert state.error is not None
    assert "NotVerifiedError" in state.error
    assert state.reason == "VerificationFailed"
    error = updater.failed.result()
    assert not error.permanent
    assert error.termination.reason == "WeightsNotVerified"
    engine.answers = lambda context: LOGPROBS[len(context) - 1]
    assert await updater.take(manifest(tmp_path, 1)) == state, "nothing may bring such an engine back"


async def test_a_refusal_of_the_engine_is_final(
    updater: WeightUpdater, loader: ScriptedLoader, tmp_path: Path
) -> None:
    loader.refuses = True
    state = await updater.take(manifest(tmp_path, 1))
    assert (state.ready, state.reason) == (False, "UpdateFailed")
    assert updater.failed.done()


@pytest.mark.parametrize("refuses", ["load", "canary"])
async def test_the_answer_names_the_signal_that_an_engine_died_of(
    engine: ScriptedEngine, loader: ScriptedLoader, tmp_path: Path, refuses: str
) -> None:
    async def kill() -> str:
        return "vLLM's EngineCore died of SIGILL"

    def gone(context: list[int]) -> float:
        raise EngineError("500")

    loader.refuses = refuses == "load"
    engine.answers = gone
    updater = WeightUpdater(engine, loader, FileStore(), tmp_path / "cache", kill=kill)
    state = await updater.take(manifest(tmp_path, 1))
    assert (state.ready, state.version, state.reason) == (False, None, "UpdateFailed")
    why = "vLLM's EngineCore died of SIGILL; it was loading weights 0.1"
    assert state.error == f"EngineDied: {why}"
    error = updater.failed.result()
    assert (error.termination.reason, error.termination.message) == ("EngineDied", why)
    assert not error.permanent


async def test_only_the_policys_slot_may_end_the_engine(
    engine: ScriptedEngine, loader: ScriptedLoader, tmp_path: Path
) -> None:
    async def kill() -> str | None:
        raise AssertionError("other slots go on")

    loader.refuses = True
    updater = WeightUpdater(
        engine, loader, FileStore(), tmp_path / "cache", slot="other", final=False, kill=kill
    )
    state = await updater.take(manifest(tmp_path, 1))
    assert (state.ready, state.error) == (False, "EngineError: no")
    assert not updater.failed.done()


async def test_a_state_can_always_be_sent(
    updater: WeightUpdater, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """JSON has no infinity, so a canary that cannot be compared has no number."""
    engine.answers = lambda context: float("nan")
    state = await updater.take(manifest(tmp_path, 1))
    assert state.canary_error is None
    assert "NaN" not in state.model_dump_json()


async def test_the_updater_is_not_ready_while_it_loads(
    updater: WeightUpdater, engine: ScriptedEngine, tmp_path: Path
) -> None:
    await updater.take(manifest(tmp_path, 1))
    seen = []
    engine.answers = lambda context: (seen.append(updater.state), LOGPROBS[len(context) - 1])[1]
    await updater.take(manifest(tmp_path, 2))
    assert {(state.version, state.ready) for state in seen} == {(v(1), False)}
