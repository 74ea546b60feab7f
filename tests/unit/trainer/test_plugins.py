"""A user's own functions: the example of docs/algorithms.md, and what is refused before any step."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from headway_api.exits import JobError
from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.training import RLTrainingJob
from headway_trainer.objective import registry
from headway_trainer.objective.advantage import Scored
from headway_trainer.objective.presets import Objective
from headway_trainer.objective.registry import PLUGINS_DIR, Table, load_plugins
from headway_trainer.objective.surrogate import SURROGATES

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
    np.testing.assert_allclose(new.grad, [-0.5, 0.5])  # on policy it is the policy gradient
    assert not seen.clipped_T.any()


def test_the_examples_job_puts_the_module_where_the_learner_looks() -> None:
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
            "there is a spec.algorithm.loss called 'ppo' already",
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
    told = refused.value.termination
    assert (told.reason, told.field) == ("PluginNotImportable", "spec.algorithm.plugins")
    assert refused.value.permanent
    assert SURROGATES["ppo"] is ppo


def test_the_folder_comes_last_and_only_for_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != PLUGINS_DIR])
    load_plugins(())
    assert PLUGINS_DIR not in sys.path
    load_plugins(("json",))
    load_plugins(("json",))
    assert sys.path.count(PLUGINS_DIR) == 1
    assert sys.path[-1] == PLUGINS_DIR


def test_a_table_lists_what_it_has() -> None:
    table: Table[int] = Table("spec.algorithm.loss")
    table.add("two", 2)
    table.add("one", 1)
    assert (list(table), table["one"], "three" in table) == (["one", "two"], 1, False)
    with pytest.raises(JobError, match="use one of one, two, or register it"):
        table["three"]
