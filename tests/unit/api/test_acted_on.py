"""The signals that a job pauses for unless it names others."""

from __future__ import annotations

from headway_api.signals import ACTED_ON, SignalName
from headway_api.spec.trust import CollapseSpec


def test_default_signals_are_listed_once_gravest_first() -> None:
    assert tuple(name for name in SignalName if name in ACTED_ON) == ACTED_ON


def test_the_reference_names_the_default_signals() -> None:
    text = CollapseSpec.model_fields["signals"].description
    assert text is not None
    assert [name for name in SignalName if name.value in text] == [*ACTED_ON]


def test_a_job_may_name_others() -> None:
    assert CollapseSpec(policy="Pause").acted_on == ACTED_ON
    named = CollapseSpec.model_validate({"policy": "Pause", "signals": ["RewardFlat"]})
    assert named.acted_on == (SignalName.REWARD_FLAT,)
    assert named.as_object()["signals"] == ["RewardFlat"]
