"""`.status.algorithm` shows what the learner runs: the same expansion, with every choice and number."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest

from headway_api.objective import Preset, episode_tokens
from headway_api.spec.algorithm import ADVANTAGES, CORRECTIONS, LOSSES, REDUCTIONS
from headway_coordinator import projections
from headway_trainer.objective.presets import Objective

CHOICES: list[dict[str, Any]] = [
    *({"loss": name} for name in LOSSES),
    *({"advantage": {"method": name}} for name in ADVANTAGES),
    *({"correction": name} for name in CORRECTIONS),
    *({"reduction": name} for name in REDUCTIONS),
    {"clip": {"low": 0.7, "high": 1.5, "dual": 3}, "ratio": "sequence"},
    {"advantage": {"method": "reinforce_pp", "gamma": 0.95}, "plugins": ["json"]},
    {"correction": "tis", "correctionCap": 4, "kl": {"coefficient": 1e-7, "estimator": "k2"}},
    {"entropy": {"coefficient": 0.001}},
    {"kl": {"coefficient": 1e-10}, "entropy": {"coefficient": 0.1 + 0.2}},
    {"clip": {"low": 0.9997, "high": 100}},
]


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
def test_status_shows_what_the_learner_runs(chosen: dict[str, Any], tmp_path: Path) -> None:
    spec = rig.job(tmp_path, tmp_path, lora={"rank": 4}, algorithm=chosen).spec
    runs = Objective.of(spec.algorithm, episode_tokens(spec)).preset
    shown = projections.algorithm(spec)
    for name in (field.name for field in fields(Preset)):
        value, in_status = getattr(runs, name), getattr(shown, name)
        if isinstance(value, float):
            assert float(in_status) == value, name
        else:
            assert in_status == (list(value) if isinstance(value, tuple) else value), name


def test_a_number_too_long_for_status_is_shortened(tmp_path: Path) -> None:
    spec = rig.job(tmp_path, tmp_path, algorithm={"kl": {"coefficient": 1.23456789e-25}}).spec
    coefficient = projections.algorithm(spec).kl_coefficient
    assert coefficient == "0.000000000000000000000000123457"
    assert len(coefficient) == 32


def test_planned_length_is_all_turns_for_builtin_loop_else_one(tmp_path: Path) -> None:
    spec = rig.job(tmp_path, tmp_path, algorithm={"reduction": "constant"}).spec
    assert projections.algorithm(spec).episode_tokens == 64 * spec.agent.planned_turns == 64 * 16
    own = spec.model_copy(
        update={"agent": type(spec.agent).model_validate({"http": {"url": "https://agent"}})}
    )
    assert projections.algorithm(own).episode_tokens == 64
