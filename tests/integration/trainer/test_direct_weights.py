"""A real learner whose weights are read from its memory, step after step and after it was killed."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
from pathlib import Path

import learner_rig as rig
import pytest
import rollout_server
from direct_weights_client import DirectWeightsClient
from role_keys import TO_LEARNER

from headway_api.config import JobConfig
from headway_api.records import StepReport, TensorDigests
from headway_api.weights_direct import header_path
from headway_api.weights_format import DIGESTS_FILE, MODEL_FILE

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]

STEPS = 5
TWO = {"processes": 2}


def job(folder: Path, model: Path, **options: int) -> JobConfig:
    """A job that stores whole weights every three steps."""
    config = rig.job(folder, model, dtype="bfloat16", optimizer={"learningRate": 1e-4}, **options)
    weights = {"backend": "nccl", "fullEverySteps": 3}
    learner = config.spec.learner.model_dump(by_alias=True) | {"weights": weights}
    spec = config.spec.model_dump(by_alias=True, exclude_none=True) | {"learner": learner}
    return JobConfig.model_validate(config.model_dump(by_alias=True) | {"spec": spec})


def at(report: StepReport) -> Path:
    return Path(report.weights.uri.removeprefix("file://"))


async def take(report: StepReport, workers: int = 1) -> dict[str, str]:
    """Digests of the tensors that the learner sends for a report's manifest."""
    from headway_trainer.publish.sender import describe

    assert report.weights.direct is not None
    taker = DirectWeightsClient(report.weights.direct, TO_LEARNER, workers)
    first, *others = await asyncio.to_thread(taker.take)
    header = describe(first)
    assert header.sha256 == report.weights.direct.header, "bit for bit what was announced"
    assert all(describe(other) == header for other in others)
    return {tensor.name: tensor.sha256 for tensor in header.tensors}


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({}, {}),
        pytest.param(TWO | {"zero_stage": 3}, TWO | {"zero_stage": 3}, marks=pytest.mark.long),
        pytest.param(TWO | {"zero_stage": 1}, {"zero_stage": 1}, marks=pytest.mark.long),
    ],
)
async def test_a_learner_that_starts_again_hands_over_the_same_weights(
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, int],
    again: dict[str, int],
) -> None:
    """This also holds with another number of processes than before."""
    monkeypatch.setenv("HEADWAY_DIRECT_ADDRESS", f"127.0.0.1:{rig.free_port()}")
    config = job(tmp_path, model, **options)
    served = rig.ScriptedCoordinator([rig.batch(step) for step in range(1, STEPS + 1)])
    async with served.serving() as url:
        async with rig.learner(config, tmp_path, url) as process:
            await rig.reached(served, 2)
            served.hold = 10**6
            await rig.reached(served, 2, durable=True)
            killed_at = served.reports[-1]
            assert killed_at.weights.kind == "direct"
            before = await take(killed_at, workers=2)
            # Unlike a pod, a killed launcher leaves its processes behind.
            process.kill(signal.SIGTERM if options else signal.SIGKILL)
            await process.exit()
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            await take(killed_at)
        reported = len(served.reports)
        async with rig.learner(job(tmp_path, model, **again), tmp_path, url) as process:
            await heard(served, reported)
            assert served.reports[-1].weights == killed_at.weights, "under the very same manifest"
            assert await take(killed_at) == before
            served.hold = 0
            assert await process.exit() == 0, process.log.read_text()[-4000:]
    reports = {report.step: report for report in served.reports}
    kinds = [reports[step].weights.kind for step in range(STEPS + 1)]
    assert kinds == ["full", "direct", "direct", "full", "direct", "direct"]
    for step, kind in enumerate(kinds):
        names = {file.name for file in at(reports[step]).iterdir()} if at(reports[step]).exists() else set()
        whole = kind == "full" or step == STEPS
        assert names >= {MODEL_FILE, DIGESTS_FILE, "config.json"} if whole else not names, step
    last_digests = TensorDigests.model_validate_json((at(reports[STEPS]) / DIGESTS_FILE).read_bytes())
    assert last_digests.tensors.keys() == before.keys()
    assert last_digests.tensors != before


async def heard(served: rig.ScriptedCoordinator, reported: int, timeout: float = 120) -> None:
    """Wait until the learner has sent a further report."""
    while len(served.reports) == reported:
        served.acknowledged.clear()
        await asyncio.wait_for(served.acknowledged.wait(), timeout)


async def test_weights_are_taken_while_the_learner_trains(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that joins and then lets the learner wait does not stop it from training further steps."""
    monkeypatch.setenv("HEADWAY_DIRECT_ADDRESS", f"127.0.0.1:{rig.free_port()}")
    config = job(tmp_path, model)
    served = rig.ScriptedCoordinator([rig.batch(step) for step in range(1, STEPS + 1)], hold=10**6)
    async with served.serving() as url, rig.learner(config, tmp_path, url) as process:
        await rig.reached(served, 0)
        first = served.reports[-1].weights.direct
        assert first is not None
        taker = DirectWeightsClient(first, TO_LEARNER)
        header = taker.header()
        waiting = await asyncio.to_thread(lambda: taker.meet(taker.join()))
        served.hold = 0
        await rig.reached(served, 3)
        assert taker.ask("GET", header_path(first.header))[0] == 404
        found = (await asyncio.to_thread(taker.receive, waiting, header))[0]
        from headway_trainer.publish.sender import describe

        assert describe(found) == header, "the version that it joined for"
        assert await process.exit() == 0, process.log.read_text()[-4000:]


@pytest.mark.long
async def test_vllm_follows_a_learner_that_is_killed_and_comes_back(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary of each version passes, so vLLM computes with the learner's weights."""
    monkeypatch.setenv("HEADWAY_DIRECT_ADDRESS", f"127.0.0.1:{rig.free_port()}")
    config = job(tmp_path, model)
    served = rig.ScriptedCoordinator([rig.batch(step) for step in range(1, STEPS + 1)])
    spec = {"full": {}, "dtype": "bfloat16"}
    with rollout_server.RolloutServer(tmp_path / "server", model, model=spec) as server:
        await asyncio.to_thread(server.wait_ready)
        async with served.serving() as url:
            async with rig.learner(config, tmp_path, url) as process:
                await rig.reached(served, 1)
                served.hold = 10**6
                await rig.reached(served, 1, durable=True)
                wanted = served.reports[-1].weights
                process.kill()
                await process.exit()
            stale = await asyncio.to_thread(server.post, wanted)
            assert (stale.version, stale.ready, stale.reason) == (None, False, "UpdateFailed"), stale.error
            reported = len(served.reports)
            async with rig.learner(config, tmp_path, url):
                await heard(served, reported)
                taken = await asyncio.to_thread(server.post, wanted)
                assert (taken.version, taken.ready, taken.error) == (wanted.version, True, None)
                for step in (2, 3, 4):
                    while served.step < step:
                        served.hold = 0
                        await asyncio.sleep(0.01)
                    served.hold = 10**6
                    newest = served.reports[-1].weights
                    taken = await asyncio.to_thread(server.post, newest)
                    assert (taken.version, taken.ready, taken.error) == (newest.version, True, None)
