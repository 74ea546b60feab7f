"""Slots of one engine are independent of each other. The engine is scripted, and the disk is real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headway_api.exits import JobError
from headway_api.records import Canary, PolicyVersion, WeightsManifest
from headway_api.store import FileStore, digest
from headway_rollout.engine import Engine, EngineError
from headway_rollout.weights import slots as slots_module
from headway_rollout.weights.loaders import BaseLoader, Loader, LoraLoader
from headway_rollout.weights.slots import Failed, SlotRefusedError, Slots
from headway_rollout.weights.updater import NOTHING, WeightUpdater

CANARY = Canary(tokens=[5, 6, 7], logprobs=[-1.0, -2.0], tolerance=0.01)


class Adapters(Engine):
    """An engine that holds adapters, and dies if the folder of an adapter it still uses is gone."""

    def __init__(self) -> None:
        self.loaded: dict[str, Path] = {}
        self.busy: dict[str, Path] = {}
        """Folders of adapters with which a request samples, also after the adapter was unloaded."""
        self.wrong: set[str] = set()
        """Names of models that compute other log-probabilities than their learner did."""
        self.refusing = False

    async def load_adapter(self, name: str, folder: str) -> None:
        if self.refusing or name in self.loaded:
            raise EngineError(f"{name} cannot be loaded")
        self.loaded[name] = Path(folder)

    async def unload_adapter(self, name: str) -> None:
        if self.refusing:
            raise EngineError("not now")
        self.loaded.pop(name, None)

    async def adapters_in_use(self) -> frozenset[str]:
        return frozenset(self.busy)

    async def next_logprob(self, model: str, context: list[int], token: int) -> float:
        if model != "base" and model not in self.loaded:
            raise EngineError(f"{model} does not exist")
        return -9.0 if model in self.wrong else CANARY.logprobs[len(context) - 1]

    def check(self) -> None:
        for name, folder in [*self.loaded.items(), *self.busy.items()]:
            assert (folder / "adapter_model.safetensors").exists(), f"the folder of {name} went"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "LOOK_SECONDS", 0.01)


@pytest.fixture
def engine() -> Adapters:
    return Adapters()


Make = Callable[..., Awaitable[Slots]]


@pytest.fixture
async def make(engine: Adapters, tmp_path: Path) -> Make:
    async def made(adapters: int = 3, trained: str | None = None, lora: bool = True) -> Slots:
        def updater(slot: str, failed: Failed) -> WeightUpdater:
            loader: Loader = (
                LoraLoader(engine, 8, slot, 3 if slot == trained else 1) if lora else BaseLoader()
            )
            place, final = tmp_path / "cache" / slot, slot == trained
            return WeightUpdater(engine, loader, FileStore(), place, slot=slot, failed=failed, final=final)

        return Slots(updater, adapters, trained)

    return made


def adapter(store: Path, step: int = 0, name: str = "a") -> WeightsManifest:
    """Store version `0.<step>` of an adapter. The weights differ for each name."""
    folder = store / f"{name}-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    matrices = {"q.lora_A.weight": (2, 4), "q.lora_B.weight": (4, 2)}
    tensors = {key: np.full(shape, ord(name[0]) + step, np.float32) for key, shape in matrices.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    files = [digest(path) for path in sorted(folder.iterdir())]
    version = PolicyVersion(incarnation=0, step=step)
    return WeightsManifest(version=version, kind="lora", uri=f"file://{folder}", files=files, canary=CANARY)


def base(canary: Canary | None = None) -> WeightsManifest:
    version = PolicyVersion(incarnation=0, step=0)
    return WeightsManifest(version=version, kind="base", uri="s3://bucket/model", files=[], canary=canary)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_two_adapters_of_one_version_and_their_base_coexist(
    make: Make, engine: Adapters, tmp_path: Path
) -> None:
    slots = await make()
    found = [
        await slots.take("one", adapter(tmp_path, name="a")),
        await slots.take("two", adapter(tmp_path, name="b")),
        await slots.take("base", base()),
    ]
    assert all(state.ready for state in found)
    assert found[2].canary_error is None, "nobody knows what it should compute"
    assert set(engine.loaded) == {"one-0.0", "two-0.0"}
    engine.check()


@pytest.mark.parametrize("lora", [True, False])
async def test_a_wrong_base_model_is_not_ready(make: Make, engine: Adapters, lora: bool) -> None:
    slots = await make(lora=lora)
    right = await slots.take("right", base(CANARY))
    assert (right.ready, right.canary_error) == (True, 0.0)
    engine.wrong.add("base")
    wrong = await slots.take("wrong", base(CANARY))
    assert (wrong.ready, wrong.version, wrong.reason) == (False, None, "VerificationFailed")
    assert slots.state("right").ready
    assert not slots.failed.done()


async def test_an_engine_without_adapters_takes_none(make: Make, tmp_path: Path) -> None:
    state = await (await make(lora=False)).take("one", adapter(tmp_path))
    assert state.error is not None
    assert "this server takes base" in state.error


@pytest.mark.parametrize("fault", ["canary", "refusal"])
async def test_a_failure_in_one_slot_leaves_the_others_serving(
    make: Make, engine: Adapters, tmp_path: Path, fault: str
) -> None:
    slots = await make()
    await slots.take("good", adapter(tmp_path, name="a"))
    engine.wrong.add("bad-0.0")
    engine.refusing = fault == "refusal"
    state = await slots.take("bad", adapter(tmp_path, name="b"))
    assert (state.ready, state.version) == (False, None)
    assert state.reason == ("VerificationFailed" if fault == "canary" else "UpdateFailed")
    assert slots.state("good").ready
    assert set(engine.loaded) == {"good-0.0"}
    assert not slots.failed.done()
    engine.wrong.clear()
    engine.refusing = False
    assert (await slots.take("bad", adapter(tmp_path, name="b"))).ready, "a second try must succeed"
    engine.check()


async def test_a_failure_of_the_trained_policy_ends_all_slots(
    make: Make, engine: Adapters, tmp_path: Path
) -> None:
    slots = await make(trained="policy")
    await slots.take("validation", adapter(tmp_path, name="a"))
    engine.wrong.add("policy-0.0")
    state = await slots.take("policy", adapter(tmp_path, name="b"))
    assert (state.ready, state.reason) == (False, "VerificationFailed")
    assert slots.failed.result().termination.reason == "WeightsNotVerified"
    other = slots.state("validation")
    assert (other.ready, other.version) == (False, None)
    assert "WeightsNotVerified" in str(other.error)
    assert await slots.take("validation", adapter(tmp_path, 1)) == other, "nothing may bring it back"


async def test_an_engine_that_hangs_ends_all_slots(make: Make, tmp_path: Path) -> None:
    slots = await make()
    await slots.take("one", adapter(tmp_path))
    slots.hung("no token")
    slots.failed.result()
    slots.hung("later")
    assert slots.state("one").error == "EngineHung: no token"
    assert isinstance(slots.failed.result(), JobError)


async def test_a_released_slots_folder_stays_while_a_request_uses_it(
    make: Make, engine: Adapters, tmp_path: Path
) -> None:
    slots = await make()
    for name in ("stays", "goes"):
        await slots.take(name, adapter(tmp_path, name=name))
    engine.busy = {"goes-0.0": engine.loaded["goes-0.0"]}
    slots.release("goes")
    assert slots.state("goes") == NOTHING
    await asyncio.sleep(0.1)
    assert "goes-0.0" in engine.loaded, "new requests of those who use it are answered still"
    folder = engine.busy.pop("goes-0.0")
    await until(lambda: not folder.exists())
    assert set(engine.loaded) == {"stays-0.0"}
    assert slots.state("stays").ready
    engine.check()
    slots.release("goes")
    slots.release("never-was")


async def test_a_slot_given_weights_during_its_release_stays_ready(
    make: Make, engine: Adapters, tmp_path: Path
) -> None:
    slots = await make()
    manifest = adapter(tmp_path)
    await slots.take("one", manifest)
    engine.busy = {"one-0.0": engine.loaded["one-0.0"]}
    slots.release("one")
    await asyncio.sleep(0.05)
    engine.busy = {}
    assert (await slots.take("one", manifest)).ready
    await asyncio.sleep(0.1)
    assert slots.state("one").ready
    assert set(engine.loaded) == {"one-0.0"}
    engine.check()


async def test_weights_may_be_requested_again_while_they_drain(
    make: Make, engine: Adapters, tmp_path: Path
) -> None:
    """A request that was accepted before the weights were unloaded still reads their folder."""
    slots = await make()
    first = adapter(tmp_path)
    await slots.take("one", first)
    folder = engine.loaded["one-0.0"]
    await slots.take("one", adapter(tmp_path, 1))
    engine.busy = {"one-0.0": folder}
    inode = folder.stat().st_ino
    assert (await slots.take("one", first)).ready
    assert (engine.loaded["one-0.0"], folder.stat().st_ino) == (folder, inode), "it was not fetched anew"
    changed = adapter(tmp_path, name="z")
    state = await slots.take(
        "one", changed.model_copy(update={"version": PolicyVersion(incarnation=0, step=1)})
    )
    assert "with other files" in str(state.error)
    engine.check()


async def test_a_failed_unload_is_retried(make: Make, engine: Adapters, tmp_path: Path) -> None:
    slots = await make(adapters=1)
    await slots.take("one", adapter(tmp_path))
    engine.refusing = True
    slots.release("one")
    await asyncio.sleep(0.1)
    engine.check()
    with pytest.raises(SlotRefusedError, match="room for 1 adapters, which are in use for one"):
        await slots.take("two", adapter(tmp_path))
    engine.refusing = False
    await until(lambda: not engine.loaded)
    async with asyncio.timeout(5):
        while True:
            try:
                assert (await slots.take("two", adapter(tmp_path))).ready
                break
            except SlotRefusedError:
                await asyncio.sleep(0.01)


async def test_adapters_beyond_the_engines_slots_are_refused(make: Make, tmp_path: Path) -> None:
    slots = await make(adapters=2, trained="policy")
    await slots.take("validation", adapter(tmp_path))
    with pytest.raises(SlotRefusedError, match="policy, validation"):
        await slots.take("more", adapter(tmp_path))
    assert (await slots.take("policy", adapter(tmp_path))).ready, "its place is kept"
    assert (await slots.take("plain", base())).ready, "the base model needs none"
    with pytest.raises(SlotRefusedError, match="cannot be released"):
        slots.release("policy")


async def test_the_number_of_slots_is_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_SLOTS", 2)
    slots = await make()
    for name in ("a", "b"):
        await slots.take(name, base())
    with pytest.raises(SlotRefusedError, match="this server holds 2 slots, the most"):
        await slots.take("c", base())
    assert (await slots.take("b", base())).ready


async def test_slots_load_at_the_same_time(make: Make, engine: Adapters, tmp_path: Path) -> None:
    """A slot that waits for the engine does not delay the others."""
    slots, free = await make(), asyncio.Event()
    plain: Any = engine.next_logprob

    async def slow(model: str, context: list[int], token: int) -> float:
        if model == "slow-0.0":
            await free.wait()
        found: float = await plain(model, context, token)
        return found

    engine.next_logprob = slow  # type: ignore[method-assign]
    waiting = asyncio.create_task(slots.take("slow", adapter(tmp_path, name="a")))
    await until(lambda: "slow-0.0" in engine.loaded)
    assert (await asyncio.wait_for(slots.take("quick", adapter(tmp_path, name="b")), 5)).ready
    free.set()
    assert (await waiting).ready
