"""Directives to the real learner, its engine and its store: their effects, and their refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
import remedied
import torch
from remedied import LORA, WIDE
from safetensors.torch import load_file
from torch import Tensor

from headway_api.in_force import InForce
from headway_api.records import StepReport
from headway_trainer import model as models

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]

WIDER = {"directive": {"in_force": {"adapter": WIDE}}}
PLAIN = [{"train": 1}, {"train": 2}, {"train": 3}]
WIDENED = [{"train": 1}, {"train": 2}, WIDER, {"train": 3}]
SETTINGS: dict[str, dict[str, Any]] = {
    "stage0": {"zero_stage": 0},
    "stage2": {"zero_stage": 2},
    "stage3": {"zero_stage": 3},
    "stage2-offload": {"zero_stage": 2, "offload": "cpu"},
    "stage1-bfloat16": {"zero_stage": 1, "dtype": "bfloat16"},
    "stage3-bfloat16": {"zero_stage": 3, "dtype": "bfloat16"},
}
CISPO = {"loss": "cispo"}
OTHERWISE = {
    "loss": "ppo",
    "clip": {"low": 0.8, "high": 1.2},
    "kl": {"coefficient": 5.0},
    "learning_rate": 5e-4,
}
AS_SPEC = {
    "algorithm": {key: value for key, value in OTHERWISE.items() if key != "learning_rate"},
    "optimizer": {"learningRate": OTHERWISE["learning_rate"]},
}


def back(*steps: int, **in_force: Any) -> dict[str, Any]:
    return {"directive": {"restore": steps, "in_force": in_force}}


FEW: dict[str, dict[str, Any]] = {
    "stage3-bfloat16": {"lora": LORA, **SETTINGS["stage3-bfloat16"], "recompute": True, "moves": WIDENED},
    "plain": {"lora": LORA, "moves": PLAIN},
    "back-and-wide": {"lora": LORA, "moves": [*WIDENED, back(2, adapter=WIDE), {"train": 3}]},
    "full-one": {"moves": PLAIN[:1]},
    "full-as-spec": {"moves": [{"start": {"copy": "full-one", **AS_SPEC}}, {"train": 2}]},
    "short": {
        "moves": [
            {"train": 1},
            {"short": True},
            {"directive": {"in_force": OTHERWISE}},
            {"short": False},
            {"directive": {"in_force": OTHERWISE}},
            {"train": 2},
        ],
    },
    "refused": {
        "lora": LORA,
        "checkpoints": {"keepLast": 9},
        "moves": [
            *PLAIN[:2],
            {"lose": 1},
            {"spoil": 2},
            back(7, 1, 2),
            {"directive": {"in_force": {"clip": {"high": 1.2}}}},
            {"directive": {"in_force": {"loss": "nobodys"}}},
            {"directive": {"in_force": {"adapter": {"rank": 2, "alpha": 4}}}},
            {"directive": {"number": 0}},
            back(2, 0),
            *PLAIN,
        ],
    },
}
"""The cases that `make test` runs."""
MORE: dict[str, dict[str, Any]] = {
    **{name: {"lora": LORA, **settings, "moves": WIDENED} for name, settings in SETTINGS.items()},
    "plain": FEW["plain"],
    "back": {"lora": LORA, "moves": [*PLAIN, back(2), {"train": 3}]},
    "back-full": {"zero_stage": 3, "moves": [*PLAIN[:2], back(1), {"train": 2}]},
    "back-bfloat16": {"lora": LORA, **SETTINGS["stage1-bfloat16"], "moves": [*PLAIN, back(2), {"train": 3}]},
    "back-delta": {"zero_stage": 1, "dtype": "bfloat16", "moves": [*PLAIN[:2], back(1), {"train": 2}]},
    "back-to-narrow": {"lora": LORA, "moves": [{"train": 1}, WIDER, {"train": 2}, back(1), {"train": 2}]},
    "restarted": {"lora": LORA, "moves": [*WIDENED[:3], {"start": {}}, {"train": 3}]},
    "behind": {
        "lora": LORA,
        "moves": [*PLAIN[:2], {"under": {"number": 1, "adapter": WIDE}}, {"train": 3}],
    },
    "one": {"lora": LORA, "algorithm": CISPO, "moves": PLAIN[:1]},
    "as-spec": {"lora": LORA, "moves": [{"start": {"copy": "one", **AS_SPEC}}, {"train": 2}]},
    "otherwise": {
        "lora": LORA,
        "algorithm": CISPO,
        "moves": [{"train": 1}, {"directive": {"in_force": OTHERWISE}}, {"train": 2}],
    },
    "full": {"moves": PLAIN[:2]},
    "full-and-undone": {
        "moves": [{"train": 1}, {"directive": {"in_force": OTHERWISE}}, {"directive": {}}, {"train": 2}],
    },
}
TOGETHER: dict[str, dict[str, Any]] = {
    "stage2": {"lora": LORA, "moves": [*WIDENED, back(2), {"train": 3}]},
    "short": {"moves": [{"train": 1}, {"short": True}, {"directive": {"in_force": OTHERWISE}}, {"train": 2}]},
}
MORE_TOGETHER: dict[str, dict[str, Any]] = {
    "stage0": {"lora": LORA, **SETTINGS["stage0"], "moves": WIDENED},
    "stage3": {"lora": LORA, **SETTINGS["stage3"], "moves": WIDENED},
    "stage1-bfloat16": {"lora": LORA, **SETTINGS["stage1-bfloat16"], "moves": WIDENED},
}
RESIZED: dict[str, dict[str, Any]] = {
    "stage3-alone": {
        **MORE_TOGETHER["stage3"],
        "moves": [{"start": {"copy": "stage3"}}, {"train": 1}, back(2, adapter=WIDE), {"train": 3}],
    }
}
"""Cases that two ranks begin and one rank continues."""


class CaseReports:
    """The reports and weights that the learner of a case published."""

    def __init__(self, folder: Path, name: str) -> None:
        self.steps = {report.step: report for report in remedied.reports(folder, name)}
        """The newest report of each step."""

    def __getitem__(self, step: int) -> StepReport:
        return self.steps[step]

    def folder(self, step: int) -> Path:
        return Path(self[step].weights.uri.removeprefix("file://"))

    def adapter(self, step: int) -> dict[str, Tensor]:
        return load_file(self.folder(step) / "adapter_model.safetensors")

    def digests(self, step: int) -> list[tuple[str, str]]:
        return [(file.name, file.sha256) for file in self[step].weights.files]


ReportsOf = Callable[[str], CaseReports]


def ran(model: Path, folder: Path, cases: dict[str, dict[str, Any]], processes: int) -> ReportsOf:
    remedied.start(model, folder, cases, processes)
    return lambda name: CaseReports(folder, name)


@pytest.fixture(scope="module")
def few(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportsOf:
    return ran(model, tmp_path_factory.mktemp("few"), FEW, 1)


@pytest.fixture(scope="module")
def more(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportsOf:
    return ran(model, tmp_path_factory.mktemp("more"), MORE, 1)


@pytest.fixture(scope="module")
def together(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportsOf:
    return ran(model, tmp_path_factory.mktemp("together"), TOGETHER, 2)


@pytest.fixture(scope="module")
def resized(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportsOf:
    """Reports of cases that two ranks began and one rank continued."""
    folder = tmp_path_factory.mktemp("resized")
    ran(model, folder, MORE_TOGETHER, 2)
    return ran(model, folder, RESIZED, 1)


def canaries_apart(one: StepReport, other: StepReport) -> float:
    assert one.weights.canary is not None
    assert other.weights.canary is not None
    pairs = zip(one.weights.canary.logprobs, other.weights.canary.logprobs, strict=True)
    return max(abs(a - b) for a, b in pairs)


def widened_alike(case: CaseReports, *, exact: bool) -> None:
    """Check that step 3 of a case widens the adapter by `WIDENED`, and computes the same as step 2."""
    assert case[3].in_force == InForce.model_validate({"number": 1, "adapter": WIDE})
    assert (case[3].groups, case[3].refused) == ([], None)
    apart, moved = canaries_apart(case[2], case[3]), canaries_apart(case[3], case[4])
    assert apart < (1e-5 if exact else 0.02)
    assert moved > 10 * apart, "the step moved less than the widening: the test proves nothing"
    for key, new in case.adapter(3).items():
        old = case.adapter(2)[key]
        assert torch.equal(new[tuple(slice(0, size) for size in old.shape)], old)
        rest = new[LORA["rank"] :] if "lora_A" in key else new[:, LORA["rank"] :]
        assert bool(rest.any()) == ("lora_A" in key)
    config = json.loads((case.folder(3) / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (WIDE["rank"], WIDE["alpha"])


def close(found: dict[str, Tensor], expected: dict[str, Tensor], within: float = 2e-6) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=within)


@pytest.mark.parametrize("name", ["back-and-wide", "stage3-bfloat16"])
def test_a_wider_adapter_computes_the_same(few: ReportsOf, name: str) -> None:
    widened_alike(few(name), exact="bfloat16" not in name)


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_wider_adapters_compute_and_train_alike_at_every_stage(more: ReportsOf, name: str) -> None:
    widened_alike(more(name), exact="bfloat16" not in name)
    if "bfloat16" not in name:
        close(more(name).adapter(4), more("stage0").adapter(4))


@pytest.mark.long
def test_two_ranks_widen_an_adapter_as_one_does(together: ReportsOf, few: ReportsOf) -> None:
    """Each rank holds a part of the optimizer, and holds other parameters after the widening than before."""
    case, alone = together("stage2"), few("back-and-wide")
    widened_alike(case, exact=True)
    close(case.adapter(4), alone.adapter(4))
    assert case[5].restored == 2
    assert case.digests(5) == case.digests(2), "they went back together"
    close(case.adapter(6), few("plain").adapter(3))


@pytest.mark.long
def test_one_rank_without_memory_is_enough_for_a_refusal(together: ReportsOf) -> None:
    case = together("short")
    assert case[2].refused is not None
    assert case[2].refused.reason == "TooLittleMemory"
    assert case[3].refused is None


@pytest.mark.long
def test_another_number_of_ranks_goes_on_with_the_wider_adapter(resized: ReportsOf, more: ReportsOf) -> None:
    """It also goes back to a checkpoint of the narrow adapter, which the former number of ranks wrote."""
    case, before = resized("stage3-alone"), more("stage3")
    assert case[4].in_force == before[4].in_force
    assert (case[5].refused, case[6].restored) == (None, 2)
    close(case.adapter(6), before.adapter(3))
    close(case.adapter(7), before.adapter(4))


@pytest.mark.long
@pytest.mark.parametrize("name", ["stage0", "stage1-bfloat16"])
def test_ranks_widen_all_sharded_state(resized: ReportsOf, more: ReportsOf, name: str) -> None:
    case = resized(name)
    widened_alike(case, exact=name == "stage0")
    close(case.adapter(4), more(name).adapter(4), 2e-6 if name == "stage0" else 2e-2)


def plain_step(model: Any, adam: torch.optim.AdamW, number: int, taken: int) -> None:
    """Train batch `number` of the rig with PPO in plain PyTorch."""
    rows = []
    for group in rig.batch(number, groups=3).groups:
        scored = [episode for episode in group.episodes if episode.reward is not None]
        rewards = torch.tensor([episode.reward for episode in scored], dtype=torch.float64)
        if rewards.std() > 0:
            found = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            rows += [(e.rows[0], float(a)) for e, a in zip(scored, found, strict=True)]
    tokens = sum(row.action_tokens for row, _ in rows)
    loss = torch.zeros(())
    for row, advantage in rows:
        places = torch.tensor(row.mask).nonzero()[:, 0]
        log_LV = model(torch.tensor([row.tokens])).logits[0].log_softmax(-1)
        new_T = log_LV[places - 1, torch.tensor(row.tokens)[places]]
        ratio_T = torch.exp(new_T - torch.tensor(row.logprobs)[places])
        loss = loss - torch.min(ratio_T * advantage, ratio_T.clamp(0.8, 1.2) * advantage).sum() / tokens
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
    adam.param_groups[0]["lr"] = 1e-3 * min(1.0, (taken + 1) / 2)
    adam.step()


def plain(folder: Path, lora: dict[str, int]) -> tuple[Any, dict[str, Any], torch.optim.AdamW]:
    spec = rig.job(folder, folder, lora=lora).spec
    model: Any = models.load(folder, spec.model, spec.seed)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    adam = torch.optim.AdamW(trained.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    return model, trained, adam


def test_widening_keeps_old_moments_and_starts_new_ones_at_zero(few: ReportsOf, model: Path) -> None:
    """The step after a widening, compared with plain PyTorch whose moments were laid out by hand."""
    narrow, before, adam = plain(model, LORA)
    for taken, number in enumerate((1, 2)):
        plain_step(narrow, adam, number, taken)
    wide, after, wider_adam = plain(model, WIDE)
    case = few("back-and-wide")
    begun = case.adapter(3)
    for name, parameter in after.items():
        parameter.data.copy_(begun[name.replace(".default.", ".")])
        kept = adam.state[before[name]]
        held = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
        for key, whole in held.items():
            whole[tuple(slice(0, size) for size in kept[key].shape)] = kept[key]
        wider_adam.state[parameter] = {"step": kept["step"].clone(), **held}
    plain_step(wide, wider_adam, 3, 2)
    close(case.adapter(4), {name.replace(".default.", "."): p.data for name, p in after.items()})


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "restored", "last"), [("back", 2, 3), ("back-full", 1, 2), ("back-bfloat16", 2, 3)]
)
def test_a_learner_goes_back_bit_for_bit_and_its_steps_go_on(
    more: ReportsOf, name: str, restored: int, last: int
) -> None:
    case = more(name)
    rolled, again = case[last + 1], case[last + 2]
    assert (rolled.restored, rolled.refused, rolled.in_force.number) == (restored, None, 1)
    assert case.digests(last + 1) == case.digests(restored) != case.digests(last)
    assert str(rolled.version) == f"0.{last + 1}"
    assert case.digests(last + 2) == case.digests(last), "the optimizer went back with the weights"
    assert again.metrics["training/learning_rate"] == case[last].metrics["training/learning_rate"]


@pytest.mark.long
def test_deltas_restart_from_full_weights_after_going_back(more: ReportsOf) -> None:
    case = more("back-delta")
    assert [case[step].weights.kind for step in range(5)] == ["full", "delta", "delta", "full", "delta"]
    assert case[3].weights.canary == case[1].weights.canary
    assert case[4].weights.canary == case[2].weights.canary != case[1].weights.canary


@pytest.mark.long
def test_a_wider_adapter_is_undone_by_going_back_before_it(more: ReportsOf) -> None:
    case = more("back-to-narrow")
    assert case[4].in_force == InForce(number=2)
    assert case.digests(4) == case.digests(1)
    assert case.digests(5) == more("plain").digests(2)


def test_a_second_remedy_goes_back_before_the_first_and_keeps_it(few: ReportsOf) -> None:
    case = few("back-and-wide")
    assert (case[5].restored, case[5].in_force.number) == (2, 2)
    assert case[5].in_force.adapter == case[3].in_force.adapter is not None
    assert case.digests(5) == case.digests(3)
    assert case.digests(6) == case.digests(4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["restarted", "behind"])
def test_a_restarted_learner_applies_what_is_in_force(more: ReportsOf, name: str) -> None:
    """It resumes from a checkpoint with the wider adapter, or from an earlier one and the next batch."""
    case, expected = more(name), more("stage2")
    last = max(case.steps)
    assert case[last].in_force == expected[4].in_force
    assert case.digests(last) == expected.digests(4)


@pytest.mark.long
def test_loss_rate_and_penalty_are_as_if_the_spec_had_them(more: ReportsOf) -> None:
    found, expected = more("otherwise"), more("as-spec")
    assert found[2].in_force == InForce.model_validate({"number": 1, **OTHERWISE})
    assert found.digests(2) == found.digests(1)
    assert found.digests(3) == expected.digests(2)
    assert found[3].metrics["training/reference_kl"] > 0
    assert found[3].metrics["training/learning_rate"] == 5e-4


@pytest.mark.long
def test_a_penalty_is_taken_back(more: ReportsOf) -> None:
    case = more("full-and-undone")
    assert case[3].in_force == InForce(number=2)
    assert case.digests(4) == more("full").digests(2)


def test_a_copy_that_fits_is_taken_and_a_larger_one_refused(few: ReportsOf) -> None:
    case = few("short")
    assert case[2].refused is not None
    assert case[2].refused.reason == "TooLittleMemory"
    assert "GiB are needed and 0.0 GiB are free" in case[2].refused.message
    assert case[2].in_force == InForce()
    assert (case[3].refused, case[3].in_force.number) == (None, 1)
    assert case[4].metrics["training/reference_kl"] > 0
    assert case.digests(4) == few("full-as-spec").digests(2), "as if the spec had it"


def test_an_impossible_directive_is_refused_without_a_change(few: ReportsOf) -> None:
    case, untouched = few("refused"), few("plain")
    refused = {step: report.refused for step, report in case.steps.items() if report.refused is not None}
    assert {step: refusal.reason for step, refusal in refused.items()} == {
        3: "NothingToRestore",
        4: "NotApplicable",
        5: "NotApplicable",
        6: "AdapterCannotNarrow",
        7: "TakenBefore",
    }
    for step, why in (
        (7, "step 2 is the last one taken"),
        (1, "it has no report.json"),
        (2, "it is not whole"),
    ):
        assert f"step {step}: " in refused[3].message
        assert why in refused[3].message
    assert "clip.low is needed" in refused[4].message
    assert "loss must be one of" in refused[5].message
    for step in refused:
        assert case.digests(step) == case.digests(2)
        assert case[step].in_force == InForce()
    assert case[8].restored == 0, "the second one named, where the first is damaged"
    assert [case.digests(step) for step in (9, 10, 11)] == [untouched.digests(step) for step in (1, 2, 3)]
