"""`headway replay` of runs that the real learner trained: DeepSpeed, checkpoints and the store are real."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
from ports import free_port
from role_keys import CHECKPOINTS
from typer.testing import CliRunner, Result

from headway_api import names
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.in_force import Directive, InForce
from headway_api.job_folder import JobFolder
from headway_api.keys import Key
from headway_api.records import Batch
from headway_api.store import FileStore
from headway_cli.app import app
from headway_coordinator.spool import Spool, decode, encode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LORA = {"rank": 4, "alpha": 8}
STEPS = 4


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    job: Path
    """Folder of the local job, which was moved after the run."""
    folder: Path
    """Folder of the run's artifacts."""
    key: Path

    def replay(self, *words: str) -> Result:
        """Run the command."""
        return CliRunner().invoke(app, ["replay", str(self.job), "--cache", str(self.job / "models"), *words])

    def replayed(self, *words: str) -> dict[str, Any]:
        """The command's result as JSON, with its exit code."""
        shown = self.replay("--output", "json", *words)
        assert shown.stdout, shown.stderr
        found: dict[str, Any] = json.loads(shown.stdout)
        return found | {"code": shown.exit_code}

    def written(self) -> dict[Path, int]:
        """All files of the run with the time of their last write."""
        return {path: path.stat().st_mtime_ns for path in self.folder.rglob("*")}


def trained(folder: Path, model: Path, batches: Sequence[Batch], **job: Any) -> Run:
    """Train a run to its end, as a job of this machine. `weights` is spec.learner.weights."""
    weights = job.pop("weights", {})
    config = rig.job(folder, model, checkpoints={"everySteps": 2, "keepLast": 2}, **job)
    spec = config.spec.as_object()
    spec["learner"]["weights"] = weights
    config = JobConfig.model_validate(config.model_dump() | {"spec": spec})
    asyncio.run(_train(config, folder, batches))
    moved = folder / "moved"
    moved.mkdir()
    (folder / "store").rename(moved / "artifacts")
    layout = Layout(f"file://{moved}/artifacts", config.namespace, config.name, config.uid)
    spool = Spool(FileStore(), layout)
    spool.describe(config)
    for batch in batches:
        for group in batch.groups:
            spool.put(group)
    identity = {"name": config.name, "namespace": config.namespace, "uid": config.uid}
    JobFolder(moved).write({"kind": config.kind, "metadata": identity, "spec": config.spec.as_object()})
    key = moved / "secrets" / names.keys_secret(config.stem, config.uid) / Key.CHECKPOINTS
    key.parent.mkdir(parents=True)
    key.write_text(f"{CHECKPOINTS}\n")
    return Run(moved, Path(layout.root.removeprefix("file://")), key)


async def _train(config: JobConfig, folder: Path, batches: Sequence[Batch]) -> None:
    served = rig.ScriptedCoordinator([*batches])
    async with served.serving() as url, rig.learner(config, folder, url) as process:
        assert await process.exit(300) == 0, process.log.read_text()[-4000:]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Run:
    """Four steps, of which the checkpoints of the second and the last are kept."""
    batches = [rig.batch(n, groups=3) for n in range(1, STEPS + 1)]
    return trained(tmp_path_factory.mktemp("run"), model, batches, lora=LORA)


@pytest.mark.ci
def test_a_step_after_a_checkpoint_has_the_same_weights(run: Run) -> None:
    before = run.written()
    found = run.replayed("--step", "3")
    assert (found["code"], found["same"], found["start"], found["trained"]) == (0, True, 2, [3])
    assert found["digest"] == found["recorded_digest"]
    metrics = [
        {name: value for name, value in found[side].items() if not name.startswith("timing_s/")}
        for side in ("recorded", "replayed")
    ]
    assert metrics[0] == metrics[1]
    assert run.written() == before, "the run's own folder is as it was"


@pytest.mark.long
def test_steps_between_checkpoint_and_target_are_trained_again(run: Run, tmp_path: Path) -> None:
    shown = run.replay("--step", "4", "--out", str(tmp_path / "out"))
    assert shown.exit_code == 0, shown.output
    assert "steps 3 to 4 trained again from the checkpoint of step 2" in shown.stdout
    assert "same weights: adapter_model.safetensors" in shown.stdout
    (weights,) = (line for line in shown.stdout.splitlines() if line.startswith("weights: "))
    kept = run.folder / "weights/000004/adapter_model.safetensors"
    assert Path(weights.removeprefix("weights: "), kept.name).read_bytes() == kept.read_bytes()


@pytest.mark.long
def test_a_replay_with_another_loss_shows_both_and_succeeds(run: Run) -> None:
    found = run.replayed(
        "--step", "4", "--loss", "importance_sampling", "--set", "spec.algorithm.kl.coefficient=1"
    )
    assert (found["code"], found["same"], found["changed"]) == (0, False, True)
    assert found["first_difference"] is None, "the step before is trained as it was"
    assert found["difference"]["differing"] > 0
    assert found["difference"]["max_abs"] > 0
    assert found["recorded"]["training/loss"] != found["replayed"]["training/loss"]
    assert found["recorded"]["training/entropy"] == found["replayed"]["training/entropy"]


@pytest.mark.long
def test_without_a_checkpoint_a_replay_begins_with_the_model(run: Run) -> None:
    found = run.replayed("--step", "1")
    assert (found["code"], found["same"], found["start"], found["trained"]) == (0, True, None, [1])


@pytest.mark.long
def test_a_replay_of_a_copied_run_asks_for_its_key(run: Run, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["replay", str(run.folder), "--step", "3", "--cache", str(tmp_path)])
    assert shown.exit_code == 2
    assert "the checkpoint of step 2 cannot be opened (no key was given" in shown.stderr
    assert "--key FILE" in shown.stderr


@pytest.mark.long
def test_a_damaged_checkpoint_is_named(run: Run, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run.folder, tmp_path / "copied"))
    for path in (copied / "checkpoints/000002").rglob("*.pt"):
        path.write_bytes(path.read_bytes()[:-1])
    given = ["replay", str(copied), "--step", "3", "--key", str(run.key), "--cache", str(tmp_path)]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 2
    assert "the checkpoint of step 2 is damaged" in shown.stderr
    assert "--from-start" in shown.stderr


@pytest.mark.long
def test_a_replay_detects_a_reward_that_was_changed_later(run: Run, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run.folder, tmp_path / "copied"))
    name = json.loads((copied / "steps/000003.json").read_text())["groups"][0]
    spooled = copied / f"trajectories/train/{name}.json.gz"
    group = decode(spooled.read_bytes())
    first = group.episodes[0].model_copy(update={"reward": 0.25})
    spooled.write_bytes(encode(group.model_copy(update={"episodes": [first, *group.episodes[1:]]})))
    given = ["replay", str(copied), "--step", "4", "--key", str(run.key), "--cache", str(tmp_path)]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 1, shown.stderr
    assert "step 3 is already different" in shown.stdout
    assert "other weights: adapter_model.safetensors" in shown.stdout
    assert "tensors differ, by" in shown.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "file"),
    [
        ({"lora": LORA | {"dropout": 0.2}, "processes": 2}, "adapter_model.safetensors"),
        ({"dtype": "bfloat16"}, "digests.json"),
        ({"dtype": "bfloat16", "weights": {"backend": "nccl"}}, "header"),
    ],
    ids=["two-ranks", "deltas", "from-memory"],
)
def test_other_learners_repeat_their_steps_too(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any], file: str
) -> None:
    monkeypatch.setenv(names.ENV_DIRECT_ADDRESS, f"127.0.0.1:{free_port()}")
    run = trained(tmp_path, model, [rig.batch(n, groups=3) for n in range(1, 4)], **job)
    found = run.replayed("--step", "3")
    assert (found["code"], found["same"], found["file"]) == (0, True, file)
    assert found["processes"] == job.get("processes", 1)


@pytest.mark.long
def test_a_replay_repeats_a_remedy_between_its_steps(tmp_path: Path, model: Path) -> None:
    """Step 4 went back to step 2, whose checkpoint is gone, and step 5 was trained with another loss."""
    holds = InForce(number=1, loss="cispo", learning_rate=5e-4)
    back = Directive(remedy="RollBack", restore=[3, 2])
    batches = [
        *(rig.batch(n, groups=3) for n in range(1, 4)),
        Batch(step=4, epoch=0, groups=[], in_force=holds, directive=back),
        rig.batch(5, groups=3).model_copy(update={"in_force": holds, "idle": [4]}),
    ]
    run = trained(tmp_path, model, batches, lora=LORA)
    found = run.replayed("--step", "5", "--from-start")
    assert (found["code"], found["same"], found["trained"]) == (0, True, [1, 2, 3, 4, 5])
    assert found["first_difference"] is None
    assert found["recorded"]["training/lag_mean"] == found["replayed"]["training/lag_mean"]
    itself = run.replayed("--step", "4")
    assert (itself["same"], itself["start"], itself["trained"]) == (True, None, [1, 2, 3, 4])
    assert "remedy RollBack, which trains nothing" in run.replay("--step", "4", "--loss", "ppo").stderr
