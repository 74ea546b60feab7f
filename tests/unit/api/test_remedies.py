"""A spec with the settings in force applied, and the records that carry these settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import learner_rig as rig
import pytest
from pydantic import ValidationError

from headway_api.in_force import AdapterSize, Directive, DirectiveRefusal, InForce
from headway_api.objective import expand
from headway_api.records import Batch, StepReport
from headway_api.remedies import NotApplicableError, applied, largest_rank, wider
from headway_api.spec.algorithm import Clip, Kl
from headway_api.spec.model import Lora
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.trust import REMEDIES, CollapseSpec

LORA = {"rank": 4, "alpha": 8, "targets": ["q_proj"]}
CISPO: dict[str, Any] = {"loss": "cispo", "clip": {"high": 5}, "ratio": "token", "updatesPerBatch": 2}
EVERYTHING = InForce(
    number=3,
    loss="ppo",
    clip=Clip(low=0.8, high=1.2),
    kl=Kl(coefficient=0.001, estimator="k2"),
    learning_rate=2e-5,
    adapter=AdapterSize(rank=8, alpha=16),
    group_size=2,
    batch_size=64,
    max_steps_off_policy=0,
)


@pytest.fixture
def spec(tmp_path: Path) -> RLTrainingJobSpec:
    return rig.job(tmp_path, tmp_path, lora=LORA, algorithm=CISPO).spec


def test_a_setting_not_in_force_is_the_specs(spec: RLTrainingJobSpec) -> None:
    assert applied(spec, InForce()) == spec
    assert applied(spec, InForce(number=7)) == spec
    other = applied(spec, InForce(number=1, learning_rate=1e-6))
    assert other.optimizer == spec.optimizer.model_copy(update={"learning_rate": 1e-6})
    assert other.model_copy(update={"optimizer": spec.optimizer}) == spec


def test_every_field_takes_the_place_of_the_specs_own(spec: RLTrainingJobSpec) -> None:
    found = applied(spec, EVERYTHING)
    assert (found.algorithm.loss, found.algorithm.clip) == ("ppo", Clip(low=0.8, high=1.2))
    assert found.algorithm.kl == Kl(coefficient=0.001, estimator="k2")
    assert found.optimizer.learning_rate == 2e-5
    assert found.model.lora == Lora(rank=8, alpha=16, targets=("q_proj",))
    assert (found.algorithm.group_size, found.algorithm.batch_size) == (2, 64)
    assert found.algorithm.max_steps_off_policy == 0
    assert found.algorithm.updates_per_batch == 2
    assert applied(found, EVERYTHING) == found, "brought there twice it is where it was"


def test_a_new_loss_has_its_own_bounds_not_those_of_the_former(spec: RLTrainingJobSpec) -> None:
    objective = expand(applied(spec, InForce(number=1, loss="ppo")).algorithm, 0)
    assert (objective.clip_low, objective.clip_high) == (0.8, 1.2)
    wider_bounds = applied(spec, InForce(number=1, clip=Clip(high=3)))
    assert wider_bounds.algorithm.loss == "cispo"
    assert wider_bounds.algorithm.clip == Clip(high=3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clip": Clip(low=0.8, high=1.2)}, "clip.low has no effect with cispo"),
        ({"batch_size": 1}, "updatesPerBatch must not be above batchSize"),
        ({"loss": "mine"}, "spec.algorithm.loss must be one of"),
        ({"loss": "importance_sampling", "clip": Clip(high=2)}, "no effect with importance_sampling"),
    ],
)
def test_a_setting_that_a_spec_refuses_cannot_be_in_force(
    spec: RLTrainingJobSpec, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(NotApplicableError, match=says):
        applied(spec, InForce(number=1, **change))


def test_a_model_that_is_trained_whole_has_no_adapter_to_change(tmp_path: Path) -> None:
    whole = rig.job(tmp_path, tmp_path).spec
    with pytest.raises(NotApplicableError, match="there is no adapter"):
        applied(whole, InForce(number=1, adapter=AdapterSize(rank=8, alpha=16)))
    assert largest_rank(whole.model, acting(whole).collapse) is None


def test_the_default_adapter_can_be_changed_too(tmp_path: Path) -> None:
    content = rig.job(tmp_path, tmp_path).spec.as_object()
    del content["model"]["full"]
    plain = RLTrainingJobSpec.model_validate(content)
    assert plain.model.lora is None
    found = applied(plain, InForce(number=1, adapter=AdapterSize(rank=64, alpha=128)))
    assert found.model.effective_lora == Lora(rank=64, alpha=128)


def test_a_wider_adapter_keeps_its_scale_within_spec_bounds() -> None:
    assert wider(Lora(rank=32, alpha=64)) == AdapterSize(rank=64, alpha=128)
    assert wider(Lora(rank=256, alpha=256)) is None
    assert wider(AdapterSize(rank=8, alpha=1024)) is None


def acting(spec: RLTrainingJobSpec, **collapse: Any) -> RLTrainingJobSpec:
    """`spec` with the policy Remediate, and these further fields of spec.collapse."""
    block = CollapseSpec().model_copy(update={"policy": "Remediate", **collapse})
    return spec.model_copy(update={"collapse": block})


def test_servers_have_room_for_the_widest_adapter_that_may_come(spec: RLTrainingJobSpec) -> None:
    def room(**collapse: Any) -> int | None:
        return largest_rank(spec.model, acting(spec, **collapse).collapse)

    assert largest_rank(spec.model, spec.collapse) == 4, "nothing is changed under Alert"
    assert room() == 8
    assert room(remedies=("RollBack", "ReferenceKl")) == 4
    assert room(max_remedies=0) == 4
    huge = spec.model.model_copy(update={"lora": Lora(rank=200)})
    assert largest_rank(huge, acting(spec).collapse) == 200


def test_a_servers_configuration_asks_for_that_room(tmp_path: Path) -> None:
    config = rig.job(tmp_path, tmp_path, lora=LORA)
    assert config.served().lora_rank == 4
    assert config.model_copy(update={"spec": acting(config.spec)}).served().lora_rank == 8


def test_each_remedy_is_listed_once() -> None:
    assert CollapseSpec().remedies == REMEDIES == tuple(dict.fromkeys(REMEDIES))


def test_records_come_back_as_they_were() -> None:
    directive = Directive(remedy="RollBack", restore=[10, 0])
    batch = Batch(step=3, epoch=0, groups=[], in_force=EVERYTHING, directive=directive)
    assert Batch.model_validate_json(batch.model_dump_json()) == batch
    refused = DirectiveRefusal(reason="NothingToRestore", message="step 10: it is gone")
    report = rig.report(3).model_copy(update={"directive": directive, "refused": refused})
    assert StepReport.model_validate_json(report.model_dump_json()) == report


def test_a_report_from_before_there_were_remedies_is_read() -> None:
    old = rig.report(3).model_dump(exclude={"in_force", "directive", "restored", "refused"})
    assert StepReport.model_validate(old).in_force == InForce()


def test_a_step_trains_or_changes_and_does_not_do_both() -> None:
    with pytest.raises(ValidationError, match="nothing is trained in its step"):
        Batch(
            step=1,
            epoch=0,
            groups=[rig.group("t000-000001", [1.0, 0.0])],
            directive=Directive(remedy="OnPolicy"),
        )


def test_a_change_has_the_number_of_its_directive() -> None:
    with pytest.raises(ValidationError, match="learning_rate in force by no directive"):
        InForce(learning_rate=1e-5)
