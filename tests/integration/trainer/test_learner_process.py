"""The real learner process against a scripted coordinator: DeepSpeed, torch and the store are real."""

from __future__ import annotations

import asyncio
import math
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
from aiohttp import web
from role_keys import KEYS, TO_COORDINATOR
from safetensors.torch import load_file

from headway_api.config import JobConfig
from headway_api.exits import PERMANENT
from headway_api.keys import Key
from headway_api.records import Batch, FileDigest, PolicyVersion, StepReport
from headway_trainer.checkpoint.manifest import IncompleteCheckpointError
from headway_trainer.checkpoint.signer import Signer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LORA = {"rank": 4, "alpha": 8}
STEPS = 5


def batches(steps: int = STEPS) -> list[Batch]:
    return [rig.batch(n, groups=3) for n in range(1, steps + 1)]


async def run(config: JobConfig, folder: Path, served: rig.ScriptedCoordinator) -> None:
    """Train to the end, undisturbed."""
    async with served.serving() as url, rig.learner(config, folder, url) as process:
        assert await process.exit(300) == 0, process.log.read_text()[-4000:]


@dataclass(frozen=True)
class Undisturbed:
    """A job that trained to its end, and what its coordinator saw."""

    config: JobConfig
    served: rig.ScriptedCoordinator
    authorizations: set[str]
    """The header Authorization of every request."""


class Calm:
    """Undisturbed jobs to compare with. Each runs once, when a test first asks for it."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, model
        self._ended: dict[tuple[bool, int], Undisturbed] = {}

    async def job(self, *, lora: bool = True, processes: int = 1) -> Undisturbed:
        """The job with so many processes, with an adapter or with full weights."""
        key = (lora, processes)
        if key not in self._ended:
            folder = self._folder / f"{'lora' if lora else 'full'}-{processes}"
            config = rig.job(folder, self._model, lora=LORA if lora else None, processes=processes)
            seen: set[str] = set()

            def look(request: web.Request) -> None:
                seen.add(request.headers["Authorization"])

            served = rig.ScriptedCoordinator(batches(), fault=look)
            await run(config, folder, served)
            self._ended[key] = Undisturbed(config, served, seen)
        return self._ended[key]


@pytest.fixture(scope="module")
def calm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    return Calm(tmp_path_factory.mktemp("calm"), model)


def first_words(served: rig.ScriptedCoordinator) -> list[StepReport]:
    """The first report of each version. The learner repeats a report when older steps become durable."""
    first: dict[PolicyVersion, StepReport] = {}
    for report in served.reports:
        first.setdefault(report.version, report)
    return list(first.values())


def weights(left: Callable[..., Any], config: JobConfig) -> list[FileDigest]:
    """Files of the last step's weights."""
    files: list[FileDigest] = left(config).report(STEPS).weights.files
    return files


async def test_every_group_is_taken_once_and_in_order(calm: Calm, left: Callable[..., Any]) -> None:
    undisturbed = await calm.job()
    config, served = undisturbed.config, undisturbed.served
    words = first_words(served)
    assert [str(report.version) for report in words] == [f"0.{step}" for step in range(STEPS + 1)]
    assert left(config).reports() == words
    assert left(config).latest == served.durable == STEPS
    assert left(config).checkpoints() == [STEPS - 1, STEPS]
    for report, batch in zip(words[1:], served.batches, strict=True):
        assert report.groups == [group.group_id for group in batch.groups]
        assert [report.train_tokens[group.group_id] > 0 for group in batch.groups] == [True, True, False]
        assert report.metrics["training/updates"] == 1
        assert report.metrics["training/trainable_token_positions"] > 0
        assert report.metrics["training/grad_norm"] > 0


@pytest.mark.long
async def test_a_learner_killed_at_random_ends_as_an_undisturbed_one(
    tmp_path: Path, model: Path, calm: Calm, left: Callable[..., Any]
) -> None:
    """It meets kill -9, dropped connections and 503s.

    The weights are still bit-identical, and each step has the same groups.
    """
    undisturbed = await calm.job()
    rng = random.Random(20)
    config = rig.job(tmp_path / "rough", model, lora=LORA)
    served = rig.ScriptedCoordinator(
        batches(), fault=lambda request: rng.choice([None, None, None, "503", "drop"])
    )
    async with served.serving() as url:
        for stop_after in (0, 2, 3):
            async with rig.learner(config, tmp_path / "rough", url) as process:
                await rig.reached(served, stop_after)
                await asyncio.sleep(rng.uniform(0.0, 0.2))
                process.kill()
                assert await process.exit() == -signal.SIGKILL or served.step == STEPS
        async with rig.learner(config, tmp_path / "rough", url) as process:
            assert await process.exit() == 0, process.log.read_text()[-4000:]

    assert weights(left, config) == weights(left, undisturbed.config)
    history = left(config).reports()
    assert [group for report in history for group in report.groups] == [
        group.group_id for batch in served.batches for group in batch.groups
    ]
    for report in served.reports:
        assert report.groups == history[report.step].groups
        assert report.weights.files == history[report.step].weights.files


@pytest.mark.long
async def test_a_kill_changes_neither_schedule_nor_dropout(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    """After a kill, the learning rates continue as planned, and the weights are bit-identical."""
    lora = LORA | {"dropout": 0.2, "rsLora": True}
    decay = {"schedule": {"decay": "cosine", "decaySteps": STEPS, "finalShare": 0.1}, "warmupSteps": 1}

    def job(name: str, **optimizer: Any) -> JobConfig:
        return rig.job(tmp_path / name, model, lora=lora, optimizer=decay | optimizer)

    calm, rough = job("calm"), job("rough")
    await run(calm, tmp_path / "calm", rig.ScriptedCoordinator(batches()))
    served = rig.ScriptedCoordinator(batches())
    async with served.serving() as url:
        async with rig.learner(rough, tmp_path / "rough", url) as process:
            await rig.reached(served, 2)
            process.kill()
            await process.exit()
        async with rig.learner(rough, tmp_path / "rough", url) as process:
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    assert weights(left, rough) == weights(left, calm)
    shares = [
        report.metrics["training/learning_rate"] / rough.spec.optimizer.learning_rate
        for report in left(rough).reports()[1:]
    ]
    length = STEPS - 1
    expected = [1.0, *(0.1 + 0.9 * (1 + math.cos(math.pi * n / length)) / 2 for n in range(length))]
    assert shares == pytest.approx(expected)


@pytest.mark.long
async def test_steps_after_the_last_checkpoint_are_repeated(
    tmp_path: Path, model: Path, calm: Calm, left: Callable[..., Any]
) -> None:
    undisturbed = await calm.job()
    config = rig.job(tmp_path, model, lora=LORA, checkpoints={"everySteps": 3})
    served = rig.ScriptedCoordinator(batches())
    async with served.serving() as url:
        async with rig.learner(config, tmp_path, url) as process:
            await rig.reached(served, 3)
            served.hold = 10**6
            await rig.reached(served, 3, durable=True)
            served.hold = 0
            await rig.reached(served, 4)
            process.kill()
            await process.exit()
        assert left(config).latest == 3
        served.hold = 0
        async with rig.learner(config, tmp_path, url) as process:
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    versions = [str(report.version) for report in first_words(served)]
    assert versions[:5] == ["0.0", "0.1", "0.2", "0.3", "0.4"]
    assert versions[-3:] == ["1.3", "1.4", "1.5"]
    assert left(config).latest == STEPS, "the last step is durable, be it due or not"
    assert weights(left, config) == weights(left, undisturbed.config)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_sigterm_saves_what_is_not_durable(
    tmp_path: Path, model: Path, calm: Calm, left: Callable[..., Any], processes: int
) -> None:
    undisturbed = await calm.job(processes=processes)
    config = rig.job(tmp_path, model, lora=LORA, processes=processes, checkpoints={"everySteps": 100})
    served = rig.ScriptedCoordinator(batches())
    async with served.serving() as url:
        async with rig.learner(config, tmp_path, url) as process:
            await rig.reached(served, 2)
            process.kill(signal.SIGTERM)
            assert await process.exit(120) == 128 + signal.SIGTERM, process.log.read_text()[-4000:]
        at = left(config).latest
        assert at >= 2, "nothing but step 0 was due"
        async with rig.learner(config, tmp_path, url) as process:
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    assert {report.version.incarnation for report in served.reports} == {0}, "no step was taken twice"
    assert weights(left, config) == weights(left, undisturbed.config)


async def test_the_best_checkpoint_is_kept(tmp_path: Path, model: Path, left: Callable[..., Any]) -> None:
    config = rig.job(tmp_path, model, lora=LORA, checkpoints={"keepLast": 1, "keepBest": 1})
    found = [batch.model_copy(update={"validated": [2, 0]}) for batch in batches()]
    found[0] = found[0].model_copy(update={"validated": [0]})
    found[1] = found[1].model_copy(update={"validated": [0]})
    await run(config, tmp_path, rig.ScriptedCoordinator(found))
    assert left(config).checkpoints() == [2, STEPS]
    assert left(config).weights(2).exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("lora", "stage", "before", "after"),
    [(None, 0, 2, 1), (None, 1, 2, 1), (None, 3, 1, 2), (LORA, 2, 1, 2), (LORA, 3, 2, 1)],
)
async def test_another_number_of_processes_goes_on_from_the_same_state(
    tmp_path: Path,
    model: Path,
    calm: Calm,
    left: Callable[..., Any],
    lora: dict[str, int] | None,
    stage: int,
    before: int,
    after: int,
) -> None:
    """Whatever the ZeRO stage, it ends as one process with the default stage does."""
    undisturbed = await calm.job(lora=lora is not None)
    served = rig.ScriptedCoordinator(batches())
    async with served.serving() as url:
        config = rig.job(tmp_path, model, lora=lora, zero_stage=stage, processes=before)
        async with rig.learner(config, tmp_path, url) as process:
            await rig.reached(served, 2)
            served.hold = 10**6
            process.kill(signal.SIGTERM)
            await process.exit(120)
        served.hold = 0
        config = rig.job(tmp_path, model, lora=lora, zero_stage=stage, processes=after)
        async with rig.learner(config, tmp_path, url) as process:
            assert await process.exit(300) == 0, process.log.read_text()[-4000:]
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    found, expected = (load_file(left(job).weights(STEPS) / name) for job in (config, undisturbed.config))
    start = load_file(left(undisturbed.config).weights(0) / name)
    apart = sum(float((found[n] - expected[n]).square().sum()) for n in expected)
    moved = sum(float((expected[n] - start[n]).square().sum()) for n in expected)
    assert apart < 1e-6 * moved


async def test_a_restarted_coordinator_gets_the_last_report_again(tmp_path: Path, model: Path) -> None:
    config = rig.job(tmp_path, model, lora=LORA)
    port = rig.free_port()
    first, second = rig.ScriptedCoordinator(batches(2)), rig.ScriptedCoordinator(batches(3))
    async with rig.learner(config, tmp_path, f"http://127.0.0.1:{port}") as process:
        first.hold = 10**6  # from the start, so that it is stopped before its end
        async with first.serving(port):
            await rig.reached(first, 0)
            first.hold = 0
            await rig.reached(first, 1)
            first.hold = 10**6
        async with second.serving(port):
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    assert second.reports[0].version == first.reports[-1].version
    assert second.step == 3


async def test_a_batch_without_any_gradient_advances_the_version_alone(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    uniform = Batch(step=1, epoch=0, groups=[rig.group(f"t0-00000{n}", [1.0, 1.0, None]) for n in range(2)])
    config = rig.job(tmp_path, model, lora=LORA)
    served = rig.ScriptedCoordinator([uniform, rig.batch(2, groups=3)])
    await run(config, tmp_path, served)
    untrained, idle, trained = (left(config).report(step) for step in range(3))
    assert idle.weights.version == PolicyVersion(incarnation=0, step=1)
    assert idle.weights.files == untrained.weights.files != trained.weights.files
    assert idle.train_tokens == {"t0-000000": 0, "t0-000001": 0}
    assert "training/loss" not in idle.metrics
    # The idle step was not an optimizer step: warm-up goes on where it was.
    assert trained.metrics["training/learning_rate"] == pytest.approx(1e-3 / 2)


@pytest.mark.ci
async def test_a_pointer_moved_back_retrains_in_a_new_incarnation(
    tmp_path: Path, model: Path, left: Callable[..., Any]
) -> None:
    config = rig.job(tmp_path, model, lora=LORA)
    await run(config, tmp_path, rig.ScriptedCoordinator(batches(3)))
    before = left(config).report(3)
    left(config).point_latest_to(2)
    again = rig.ScriptedCoordinator(batches(3))
    await run(config, tmp_path, again)
    assert [str(report.version) for report in first_words(again)] == ["1.2", "1.3"]
    assert again.reports[-1].weights.files == before.weights.files


async def test_sigterm_ends_a_waiting_learner_at_once(tmp_path: Path, model: Path) -> None:
    config = rig.job(tmp_path, model, lora=LORA)
    served = rig.ScriptedCoordinator(batches(), hold=10**6)
    async with served.serving() as url, rig.learner(config, tmp_path, url) as process:
        await rig.reached(served, 0)
        process.kill(signal.SIGTERM)
        assert await process.exit(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_model_that_does_not_load_is_named(tmp_path: Path, processes: int) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "qwen3"}')
    config = rig.job(tmp_path, broken, lora=LORA, processes=processes)
    async with rig.learner(config, tmp_path, "http://127.0.0.1:1") as process:
        assert await process.exit(200) == PERMANENT
    log = process.log.read_text()
    assert "ModelNotLoadable: spec.model.base: file://" in log


async def test_checkpoints_carry_the_learners_own_signature(calm: Calm, left: Callable[..., Any]) -> None:
    config = (await calm.job()).config
    record, layout = left(config).checkpoint_record(STEPS)
    assert Signer.of(KEYS[Key.CHECKPOINTS], layout).opened("report.json", record)["report"]["step"] == STEPS
    for other in {*Key} - {Key.CHECKPOINTS}:
        with pytest.raises(IncompleteCheckpointError, match="signature"):
            Signer.of(KEYS[other], layout).opened("report.json", record)


async def test_requests_carry_the_key_for_the_coordinator(calm: Calm) -> None:
    assert (await calm.job()).authorizations == {f"Bearer {TO_COORDINATOR}"}
