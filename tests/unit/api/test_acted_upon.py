"""The signals that a job stops for unless it names others."""

from __future__ import annotations

from headway_api.signals import ACTED_UPON, SignalName
from headway_api.spec.trust import CollapseSpec


def test_default_signals_are_listed_once_gravest_first() -> None:
    assert tuple(name for name in SignalName if name in ACTED_UPON) == ACTED_UPON


def test_the_reference_names_them() -> None:
    text = CollapseSpec.model_fields["signals"].description
    assert text is not None
    assert [name for name in SignalName if name.value in text] == [*ACTED_UPON]


def test_a_job_may_name_others() -> None:
    assert CollapseSpec(policy="Pause").acted_upon == ACTED_UPON
    named = CollapseSpec.model_validate({"policy": "Pause", "signals": ["RewardFlat"]})
    assert named.acted_upon == (SignalName.REWARD_FLAT,)
    assert named.as_object()["signals"] == ["RewardFlat"]
