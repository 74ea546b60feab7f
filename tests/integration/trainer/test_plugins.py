"""A user's module in the plugin folder, and the real learner process that imports it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import numpy as np
import pytest

from headway_api import names
from headway_api.exits import PERMANENT

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "algorithms" / "acme_objective.py"
FAULTY = """
import numpy as np
from headway_trainer.objective.advantage import episode_advantage

@episode_advantage("of_nothing")
def of_nothing(rewards_G, tokens_G, settings):
    return np.full(len(rewards_G), np.nan)
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is mounted at `/plugins` in a pod."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.setenv(names.ENV_PLUGINS, str(folder))
    return folder


async def test_a_job_trains_with_the_functions_of_a_users_module(
    tmp_path: Path, model: Path, plugins: Path, left: Callable[..., Any]
) -> None:
    shutil.copy(EXAMPLE, plugins)
    algorithm = {"plugins": ["acme_objective"], "loss": "sapo", "advantage": {"method": "against_median"}}
    config = rig.job(tmp_path, model, lora={"rank": 4, "alpha": 8}, algorithm=algorithm)
    batch = rig.batch(1)
    served = rig.ScriptedCoordinator([batch])
    async with served.serving() as url, rig.learner(config, tmp_path, url) as process:
        assert await process.exit(200) == 0, process.log.read_text()[-4000:]
    found = left(config).report(1).metrics
    rewards = [[e.reward for e in group.scored] for group in batch.groups]
    advantages = np.concatenate([np.array(given) - np.median(given) for given in rewards])
    assert found["rollout/advantage/mean"] == pytest.approx(advantages.mean())
    assert found["rollout/advantage/max"] == pytest.approx(advantages.max())
    assert found["training/num_trained_groups"] == 1
    assert found["training/clip_fraction"] == 0  # the user's loss clips nothing, and ppo would
    assert found["training/grad_norm"] > 0


async def test_a_module_whose_function_fails_ends_the_job_by_its_name(
    tmp_path: Path, model: Path, plugins: Path
) -> None:
    (plugins / "faulty.py").write_text(FAULTY)
    algorithm = {"plugins": ["faulty"], "advantage": {"method": "of_nothing"}}
    config = rig.job(tmp_path, model, lora={"rank": 4, "alpha": 8}, algorithm=algorithm, processes=2)
    served = rig.ScriptedCoordinator([rig.batch(1)])
    async with served.serving() as url, rig.learner(config, tmp_path, url) as process:
        assert await process.exit(200) == PERMANENT, process.log.read_text()[-4000:]
    log = process.log.read_text()
    assert (
        "PluginFaulty: spec.algorithm.plugins: spec.algorithm.advantage.method 'of_nothing' returned" in log
    )
