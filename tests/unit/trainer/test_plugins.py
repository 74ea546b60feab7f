"""Plugins, a user's own functions: the example of docs/algorithms.md, and what is refused at the start."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from headway_api.exits import JobError
from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.training import RLTrainingJob
from headway_trainer.objective import registry
from headway_trainer.objective.advantage import ADVANTAGES, Scored, of_each_group
from headway_trainer.objective.correction import CORRECTIONS, Correction
from headway_trainer.objective.presets import Objective
from headway_trainer.objective.ratio import RATIOS
from headway_trainer.objective.reduction import REDUCTIONS, RowShape
from headway_trainer.objective.registry import PLUGINS_DIR, Table, load_plugins
from headway_trainer.objective.surrogate import SURROGATES, Surrogate, never_clipped

EXAMPLE = Path(__file__).parents[3] / "examples" / "algorithms"


def test_the_example_trains_with_its_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PLUGINS_DIR", str(EXAMPLE))
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = RLTrainingJob.model_validate(yaml.safe_load((EXAMPLE / "job.yaml").read_text()))
    objective = Objective.of(job.spec.algorithm)
    assert objective.preset.plugins == ("acme_objective",)
    found = objective.advantages([[Scored(r, (1,)) for r in (0.0, 0.25, 5.0)]])
    np.testing.assert_allclose(np.concatenate(found[0]), [-0.25, 0.0, 4.75])
    new = torch.log(torch.tensor([0.5, 0.5])).requires_grad_()
    advantage = torch.tensor([1.0, -1.0])
    share, seen = objective.token_loss(new, new.detach(), advantage, torch.full((2,), 0.5))
    share.backward()
    np.testing.assert_allclose(new.grad, [-0.5, 0.5])  # on policy, the gradient is the policy gradient
    assert not seen.clipped_T.any()


def test_the_example_job_mounts_its_module_in_the_plugins_dir() -> None:
    template = yaml.safe_load((EXAMPLE / "job.yaml").read_text())["spec"]["learner"]["podTemplate"]["spec"]
    [mount] = template["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == PLUGINS_DIR


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "ModuleNotFoundError"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("def broken(:", "SyntaxError"),
        (
            "from headway_trainer.objective.surrogate import surrogate\n@surrogate('ppo')\ndef mine(*a): ...",
            "a spec.algorithm.loss is already called 'ppo'",
        ),
        (  # there is no function of that name, because gspo is ppo with another ratio
            "from headway_trainer.objective.surrogate import surrogate as s\n@s('gspo')\ndef mine(*a): ...",
            "a spec.algorithm.loss is already called 'gspo'",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_names_its_field(
    source: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"plugin_{tmp_path.name}"
    monkeypatch.setattr(registry, "PLUGINS_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    ppo = SURROGATES["ppo"]
    with pytest.raises(JobError, match=says) as refused:
        Objective.of(AlgorithmSpec(plugins=(name,)))
    termination = refused.value.termination
    assert (termination.reason, termination.field) == ("PluginNotImportable", "spec.algorithm.plugins")
    assert refused.value.permanent
    assert SURROGATES["ppo"] is ppo


GROUPS = [[Scored(1.0, (2, 3)), Scored(0.0, (1,))], [Scored(0.5, (1,)), Scored(0.0, (1,))]]


def own(monkeypatch: pytest.MonkeyPatch, table: Table[Any], entry: Any) -> Objective:
    """An objective in which the user's `entry` is registered in `table` and chosen."""
    monkeypatch.setattr(table, "_entries", {**table._entries, "mine": entry})
    field = table.field.removeprefix("spec.algorithm.").removesuffix(".method")
    named = {"method": "mine"} if field == "advantage" else "mine"
    return Objective.of(AlgorithmSpec.model_validate({"plugins": ["json"], field: named}), 64)


def refused(table: Table[Any], says: str) -> AbstractContextManager[Any]:
    return pytest.raises(JobError, match=re.escape(f"{table.field} 'mine' {says}"))


NAN = float("nan")


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        (lambda groups: [], "returned 0 values for 2 groups of a batch"),
        (lambda groups: [[np.zeros(2)], [np.zeros(1)] * 2], "returned 1 values for 2 episodes of a group"),
        (lambda groups: [[np.zeros(1)] * 2] * 2, "returned 1 values for 2 turns of an episode"),
        (
            lambda groups: [[np.zeros(2), np.array([NAN])], [np.zeros(1)] * 2],
            "returned [nan] for an episode of a group with rewards [1.0, 0.0]",
        ),
        (
            lambda groups: [[np.zeros((2, 1)), np.zeros(1)], [np.zeros(1)] * 2],
            "returned an array of shape [2, 1] for an episode, not [2]: one number per turn",
        ),
        (
            lambda groups: [[np.zeros(2), np.array([1e39])], [np.zeros(1)] * 2],  # inf in float32
            "returned [1e+39] for an episode of a group with rewards [1.0, 0.0]",
        ),
        (lambda groups: 1 / 0, "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_plugin_advantage_must_be_one_number_per_turn(
    returns: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = own(monkeypatch, ADVANTAGES, lambda groups, settings: returns(groups))
    with refused(ADVANTAGES, says) as fault:
        objective.advantages(GROUPS)
    termination = fault.value.termination
    assert (termination.reason, termination.field) == ("PluginFaulty", "spec.algorithm.plugins")
    assert fault.value.permanent


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        (np.zeros(3), "returned 3 values for 2 episodes of a group"),
        (np.array([0.0, np.inf]), "returned [inf] for an episode of a group with rewards [1.0, 0.0]"),
    ],
)
def test_a_plugin_advantage_of_an_episode_must_be_one_number(
    returns: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = of_each_group(lambda rewards_G, tokens_G, settings: returns)
    with refused(ADVANTAGES, says):
        own(monkeypatch, ADVANTAGES, function).advantages(GROUPS)


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ([1.0], "returned 1 values for 2 training rows of an optimizer step"),
        ([0.5, NAN], "returned nan as the weight of a training row's tokens"),
        ([0.5, 1e39], "returned 1e+39 as the weight of a training row's tokens"),
    ],
)
def test_an_invalid_weight_names_the_reduction_at_fault(
    returns: list[float], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = own(monkeypatch, REDUCTIONS, lambda rows, episode_tokens: returns)
    with refused(REDUCTIONS, says):
        objective.weights([RowShape("a", 0, 3), RowShape("a", 1, 2)])


@pytest.mark.parametrize(
    ("table", "entry", "says"),
    [
        (RATIOS, lambda new_T, old_T, row_T: new_T.mean(), "returned the shape [] for 3 tokens"),
        (
            SURROGATES,
            Surrogate(lambda r, n, a, b: (r * a).mean(0, True), never_clipped),
            "returned the shape [1]",
        ),
        (SURROGATES, Surrogate(lambda r, n, a, b: r * a, lambda r, a, b: 0.0), "returned a float for"),
        (CORRECTIONS, Correction(lambda s, o, row, cap: (o, 1.0), recomputes=False), "returned a float for"),
    ],
)
def test_a_plugin_loss_must_be_one_number_per_token(
    table: Table[Any], entry: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = torch.zeros(3)
    with refused(table, says):
        own(monkeypatch, table, entry).token_loss(zero, zero, zero, zero)


def test_a_fault_of_a_built_in_function_blames_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADVANTAGES._entries, "opo", lambda groups, settings: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Objective.of(AlgorithmSpec.model_validate({"advantage": {"method": "opo"}})).advantages(GROUPS)


def test_the_plugins_folder_is_last_in_the_path_and_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != PLUGINS_DIR])
    load_plugins(())
    assert PLUGINS_DIR not in sys.path
    load_plugins(("json",))
    load_plugins(("json",))
    assert sys.path.count(PLUGINS_DIR) == 1
    assert sys.path[-1] == PLUGINS_DIR


def test_a_table_lists_its_names() -> None:
    table: Table[int] = Table("spec.algorithm.loss")
    table.add("two", 2)
    table.add("one", 1)
    assert (list(table), table["one"], "three" in table) == (["one", "two"], 1, False)
    with pytest.raises(JobError, match="use one of one, two, or register it"):
        table["three"]
