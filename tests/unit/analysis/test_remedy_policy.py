"""Which remedy is decided and when, and what follows its watch: situations and their decisions."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from played_jobs import Story, a_spec, acting

from headway_analysis.remedies.catalogue import BEYOND, FITS, ordered
from headway_analysis.remedies.judgement import LONGEST_WATCH, WATCH
from headway_analysis.remedies.policy import decide, obey
from headway_analysis.signals.definition import Level
from headway_api.decisions import Decision, Kept, RefusedOrder
from headway_api.in_force import AdapterSize, InForce
from headway_api.signals import SignalName as S
from headway_api.spec.algorithm import Kl
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.spec.trust import REMEDIES


def taken(found: object) -> Decision:
    assert isinstance(found, Decision), found
    return found


def remedy(found: object) -> str | None:
    return taken(found).directive.remedy if isinstance(found, Decision) else None


def collapsed(**changes: Any) -> Story:
    """A job that validated well at step 20, and has had no reward since step 60."""
    story = Story(acting(a_spec(), **changes))
    return story.train(20, 0.6).validate(0.8).train(40, 0.6).train(10, 0.02).raise_(S.REWARD_COLLAPSED)


def uniform(**changes: Any) -> Story:
    return Story(acting(a_spec(), **changes)).train(30).raise_(S.GROUPS_UNIFORM)


def test_nothing_is_changed_where_nothing_is_wrong() -> None:
    assert decide(Story().train(30).now()) is None


@pytest.mark.parametrize("policy", ["Alert", "Pause"])
def test_another_policy_changes_nothing(policy: str) -> None:
    assert decide(collapsed(policy=policy).now()) is None


def test_a_sign_that_the_job_does_not_act_on_changes_nothing() -> None:
    assert decide(collapsed().now(acting=frozenset({S.GROUPS_UNIFORM}))) is None


def test_a_sign_that_is_about_to_clear_changes_nothing() -> None:
    assert decide(collapsed().raise_(S.REWARD_COLLAPSED, level=Level.CLEAR).now()) is None


def test_after_a_collapse_the_job_goes_back_to_its_best_step() -> None:
    story = collapsed()
    found = taken(decide(story.now()))
    assert (found.number, found.step, found.signal) == (1, 71, S.REWARD_COLLAPSED)
    assert (found.directive.remedy, found.directive.restore) == ("RollBack", [20])
    assert found.in_force == InForce(number=1)
    assert found.why == "RewardCollapsed: it is 0.5"
    assert found.before.reward == pytest.approx(0.03, abs=0.01)
    assert (found.before.steps, found.before.validated, found.before.score) == (10, 20, 0.8)
    assert found.before.low is not None
    assert decide(story.now()) == found, "of equal records come equal decisions"


def test_no_rollback_if_no_step_was_surely_better() -> None:
    story = Story().train(20, 0.5).validate(0.8).train(40, 0.5).raise_(S.REWARD_COLLAPSED)
    assert remedy(decide(story.now())) == "OnPolicy"
    story.validate(0.3)
    assert taken(decide(story.now())).directive.restore == [20], "held-out rows tell as well"


def test_only_better_steps_are_offered_in_order() -> None:
    story = Story().train(5, 0.1).validate(0.1).train(5, 0.1)
    story.train(20, 0.6).validate(0.7).train(30, 0.6).validate(0.9)
    story.train(20, 0.1).raise_(S.REWARD_COLLAPSED)
    assert taken(decide(story.now())).directive.restore == [60, 30]


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (S.REWARD_COLLAPSED, ["RollBack", "OnPolicy", "CispoToPpo", "LowerLearningRate"]),
        (S.GROUPS_UNIFORM, ["SmallerGroups", "LargerBatch", "RollBack", "OnPolicy"]),
        (S.POLICY_MISMATCH, ["OnPolicy", "RollBack", "CispoToPpo", "LowerLearningRate"]),
        (S.GRADIENT_SPIKING, ["LowerLearningRate", "RollBack", "OnPolicy", "CispoToPpo"]),
        (S.VALIDATION_DIVERGED, ["RollBack", "ReferenceKl", "OnPolicy", "CispoToPpo"]),
    ],
)
def test_fitting_remedies_come_first_then_the_jobs_own_order(signal: S, expected: list[str]) -> None:
    assert ordered(signal, REMEDIES)[:4] == expected
    assert sorted(ordered(signal, REMEDIES)) == sorted(REMEDIES)


def test_the_jobs_own_order_counts_among_those_that_fit() -> None:
    assert ordered(S.REWARD_COLLAPSED, ["WiderAdapter", "CispoToPpo", "RollBack"]) == [
        "CispoToPpo",
        "RollBack",
        "WiderAdapter",
    ]


def test_every_sign_has_remedies_that_fit_or_is_beyond_them() -> None:
    assert FITS.keys() | BEYOND == set(S)
    assert not FITS.keys() & BEYOND


def test_the_documentation_says_what_is_tried_first() -> None:
    page = (Path(__file__).parents[3] / "docs" / "remedies.md").read_text()
    table = page.split("| signal | tried first |")[1].split("\n\n")[0]
    documented: dict[str, list[str]] = {}
    for signals, remedies in re.findall(r"^\| (.*) \| (.*) \|$", table, re.MULTILINE):
        documented |= dict.fromkeys(re.findall(r"`(\w+)`", signals), re.findall(r"`(\w+)`", remedies))
    assert documented == {name: ordered(name, REMEDIES)[: len(fits)] for name, fits in FITS.items()}
    beyond = page.split("takes no remedy against `RewardFlat`")[1].split("\n")[0]
    assert {"RewardFlat", *re.findall(r"`(\w+)`", beyond)} == BEYOND
    listed = page.split("| remedy | what it changes | applies if |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", listed, re.MULTILINE)) == REMEDIES


@pytest.mark.parametrize("signal", sorted(BEYOND))
def test_nothing_is_changed_for_what_a_person_must_mend(signal: S) -> None:
    assert decide(Story().train(40).raise_(signal).now()) is None


def test_a_lesser_sign_counts_where_the_gravest_has_no_remedy() -> None:
    story = Story().train(40).raise_(S.REWARD_FLAT, S.GROUPS_UNIFORM)
    found = taken(decide(story.now()))
    assert (found.directive.remedy, found.signal) == ("SmallerGroups", S.GROUPS_UNIFORM)


APPLIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("OnPolicy", {}, {"max_steps_off_policy": 0}),
    ("CispoToPpo", {}, {"loss": "ppo"}),
    ("LowerLearningRate", {}, {"learning_rate": 1.3e-5}),
    ("SmallerGroups", {}, {"group_size": 4}),
    ("SmallerGroups", {"groupSize": 3}, {"group_size": 2}),
    ("LargerBatch", {}, {"batch_size": 4}),
    ("WiderAdapter", {}, {"adapter": AdapterSize(rank=64, alpha=128)}),
    ("ReferenceKl", {}, {"kl": Kl(coefficient=0.001)}),
]


@pytest.mark.parametrize(("name", "algorithm", "brings"), APPLIES)
def test_each_remedy_changes_its_settings(
    name: str, algorithm: dict[str, Any], brings: dict[str, Any]
) -> None:
    given = {"loss": "cispo", "groupSize": 8, "maxStepsOffPolicy": 3} | algorithm
    of = a_spec().model_copy(update={"algorithm": type(a_spec().algorithm)(**{"batchSize": 2} | given)})
    story = Story(acting(of, remedies=(name,))).train(30).raise_(S.GROUPS_UNIFORM)
    found = taken(decide(story.now()))
    assert found.directive.remedy == name
    assert found.in_force == InForce(number=1, **brings)
    assert found.directive.restore == []


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("RollBack", {}),
        ("OnPolicy", {"maxStepsOffPolicy": 0}),
        ("CispoToPpo", {"loss": "ppo"}),
        ("SmallerGroups", {"groupSize": 2}),
        ("LargerBatch", {"batchSize": 3000}),
        ("ReferenceKl", {"kl": {"coefficient": 0.1}}),
    ],
)
def test_a_remedy_that_does_not_apply_is_left_out(name: str, algorithm: dict[str, Any]) -> None:
    given = {"loss": "cispo", "groupSize": 8, "maxStepsOffPolicy": 3, "batchSize": 2} | algorithm
    of = a_spec().model_copy(update={"algorithm": type(a_spec().algorithm).model_validate(given)})
    story = Story(acting(of, remedies=(name,))).train(30).raise_(S.GROUPS_UNIFORM)
    assert decide(story.now()) is None


def test_a_batch_grows_only_where_the_data_lasts_for_its_watch() -> None:
    story = uniform(remedies=("LargerBatch",))
    story.groups_left = 4 * WATCH
    assert remedy(decide(story.now())) == "LargerBatch"
    story.groups_left -= 1
    assert decide(story.now()) is None


@pytest.mark.parametrize("model", [{"lora": {"rank": 256}}, {"full": {}}])
def test_an_adapter_is_widened_only_if_one_exists_and_can_grow(model: dict[str, Any]) -> None:
    content = a_spec().as_object() | {"model": {"base": "s3://b/m"} | model, "collapse": {}}
    of = RLTrainingJobSpec.model_validate(content)
    story = Story(acting(of, remedies=("WiderAdapter",))).train(30).raise_(S.GROUPS_UNIFORM)
    assert decide(story.now()) is None


def test_nothing_else_is_changed_while_a_remedy_is_watched() -> None:
    story = uniform()
    story.carry_out(decide(story.now()))
    for _ in range(WATCH - 1):
        story.train(1)
        assert decide(story.now()) is None
    story.train(1)
    assert decide(story.now()) is not None


def test_a_remedy_that_helped_is_kept_with_its_numbers() -> None:
    story = uniform()
    story.carry_out(decide(story.now())).train(WATCH, 0.7).calm()
    found = decide(story.now())
    assert isinstance(found, Kept)
    assert (found.number, found.step) == (1, 56)
    assert "GroupsUniform is no longer raised; the reward moved by 0.2" in found.why
    assert found.after.reward == pytest.approx(0.71, abs=0.01)
    story.carry_out(found)
    assert decide(story.now()) is None
    [entry] = story.now().course.entries
    assert (entry.state, entry.ended) == ("Kept", 56)


def test_a_remedy_that_did_not_help_is_undone_for_the_next() -> None:
    story = uniform()
    story.carry_out(decide(story.now())).train(WATCH)
    undo = taken(decide(story.now()))
    assert (undo.number, undo.step, undo.undoes) == (2, 57, 1)
    assert undo.directive.undo
    assert undo.directive.remedy == "SmallerGroups"
    assert undo.in_force == InForce(number=2)
    assert "GroupsUniform is still raised (it is 0.5)" in undo.why
    story.carry_out(undo)
    [entry] = story.now().course.entries
    assert (entry.state, entry.ended) == ("Undone", 56)
    assert entry.after == undo.before
    following = taken(decide(story.now()))
    assert (following.number, following.directive.remedy) == (3, "LargerBatch")
    assert following.in_force == InForce(number=3, batch_size=4)


def test_a_remedy_that_cost_reward_is_undone() -> None:
    story = uniform()
    story.carry_out(decide(story.now())).train(WATCH, 0.2).calm()
    found = taken(decide(story.now()))
    assert found.directive.undo
    assert "the reward moved by -0.298 (-0.3062 to -0.2898)" in found.why


def test_a_remedy_that_cost_held_out_reward_is_undone() -> None:
    story = Story().train(30).validate(0.8).raise_(S.GROUPS_UNIFORM)
    story.carry_out(decide(story.now())).train(WATCH).validate(0.5).calm()
    found = taken(decide(story.now()))
    assert found.directive.undo
    assert "held-out rows moved by -0.3" in found.why
    assert "from step 30 to 56" in found.why


def test_a_sign_about_to_clear_does_not_take_a_remedy_back() -> None:
    story = uniform()
    story.carry_out(decide(story.now())).train(WATCH)
    story.raise_(S.GROUPS_UNIFORM, since=20, level=Level.BETWEEN)
    found = decide(story.now())
    assert isinstance(found, Kept)
    assert "GroupsUniform is about to clear" in found.why


def test_a_sign_that_is_judged_at_validations_is_waited_for() -> None:
    story = Story(acting(a_spec(), remedies=("ReferenceKl",))).train(30)
    story.raise_(S.VALIDATION_DIVERGED, clock="validation")
    story.carry_out(decide(story.now())).train(WATCH)
    assert decide(story.now()) is None, "no validation has come since"
    late, silent = story.now(), deepcopy(story)
    story.validate(0.5)
    assert taken(decide(story.now())).directive.undo
    assert late.step < 31 + LONGEST_WATCH
    story = silent.train(LONGEST_WATCH - WATCH)
    kept = decide(story.now())
    assert isinstance(kept, Kept)
    assert "VALIDATION" not in kept.why
    assert "ValidationDiverged has not been judged since" in kept.why


def test_a_sign_that_no_step_reports_is_not_raised_still() -> None:
    story = uniform()
    story.carry_out(decide(story.now()))
    silent = story.verdicts
    story.train(WATCH).verdicts = silent
    assert decide(story.now()) is None, "no step has said anything since"
    story.train(LONGEST_WATCH - WATCH).verdicts = silent
    kept = decide(story.now())
    assert isinstance(kept, Kept)
    assert "GroupsUniform has not been judged since" in kept.why


def test_a_job_without_validations_does_not_wait_for_one() -> None:
    quiet = a_spec().evaluation.model_copy(update={"every_steps": 0})
    of = a_spec().model_copy(update={"evaluation": quiet})
    story = Story(acting(of, remedies=("ReferenceKl",))).train(30)
    story.raise_(S.VALIDATION_DIVERGED, clock="either")
    story.carry_out(decide(story.now())).train(WATCH)
    assert taken(decide(story.now())).directive.undo


def test_a_job_has_no_more_remedies_than_it_allows() -> None:
    story = uniform(max_remedies=2)
    for _ in range(2):
        story.carry_out(decide(story.now())).train(WATCH)
        story.carry_out(decide(story.now()))
    assert story.now().course.made == 2
    assert decide(story.now()) is None


def test_a_job_may_allow_no_remedy() -> None:
    assert decide(collapsed(max_remedies=0).now()) is None


def test_each_remedy_is_tried_once() -> None:
    story = uniform(max_remedies=8, remedies=("SmallerGroups",))
    story.carry_out(decide(story.now())).train(WATCH)
    story.carry_out(decide(story.now()))
    assert decide(story.now()) is None


def test_a_refused_remedy_is_not_counted_and_the_next_is_tried() -> None:
    story = uniform(max_remedies=1)
    story.carry_out(decide(story.now()), refused="no")
    [entry] = story.now().course.entries
    assert (entry.state, entry.why, entry.is_in_force) == ("Refused", "NotApplicable: no", False)
    found = taken(decide(story.now()))
    assert (found.number, found.directive.remedy) == (2, "LargerBatch")
    assert found.in_force.group_size is None


def test_nothing_is_changed_that_could_not_be_watched_to_its_end() -> None:
    story = uniform()
    assert decide(story.now(steps=30 + WATCH)) is None
    assert remedy(decide(story.now(steps=31 + WATCH))) == "SmallerGroups"


def gone_back() -> Story:
    story = collapsed()
    return story.carry_out(decide(story.now())).train(5, 0.6).calm()


def test_after_a_rollback_that_helped_nothing_else_changes() -> None:
    story = gone_back().train(WATCH - 5, 0.6)
    found = decide(story.now())
    assert isinstance(found, Kept)
    assert "RewardCollapsed is no longer raised" in found.why
    assert decide(story.carry_out(found).now()) is None


def test_a_returning_sign_rolls_back_and_changes_a_setting() -> None:
    """A job that collapses again is not watched to the end."""
    story = gone_back().train(8, 0.02).raise_(S.REWARD_COLLAPSED)
    found = taken(decide(story.now()))
    assert (found.directive.remedy, found.directive.restore) == ("OnPolicy", [20])
    assert found.in_force == InForce(number=2, max_steps_off_policy=0)
    assert found.why.endswith("going back alone did not last")
    story.carry_out(found)
    assert [entry.state for entry in story.now().course.entries] == ["Replaced", "Watching"]
    assert story.now().course.entries[0].is_in_force


def test_a_sign_that_was_never_gone_is_not_one_that_came_back() -> None:
    """The signals' windows still contain steps from before."""
    story = collapsed()
    story.carry_out(decide(story.now())).train(5, 0.6)
    assert decide(story.now()) is None


def test_a_collapse_after_a_kept_rollback_rolls_back_too() -> None:
    story = gone_back().train(WATCH - 5, 0.6)
    story.carry_out(decide(story.now())).train(20, 0.6).train(10, 0.02).raise_(S.REWARD_COLLAPSED)
    found = taken(decide(story.now()))
    assert (found.directive.remedy, found.directive.restore) == ("OnPolicy", [20])


def test_results_from_before_a_rollback_make_no_step_better() -> None:
    """The last validation and the last rewards do not describe the weights after the rollback."""
    story = Story().train(20, 0.6).validate(0.8).train(40, 0.6).train(10, 0.02).validate(0.1)
    story.raise_(S.REWARD_COLLAPSED)
    story.carry_out(decide(story.now())).train(WATCH, 0.6).calm()
    story.carry_out(decide(story.now())).raise_(S.GROUPS_UNIFORM)
    found = taken(decide(story.now()))
    assert (found.directive.remedy, found.directive.restore) == ("SmallerGroups", [])
    assert taken(decide(story.validate(0.1).now())).directive.restore == [20], "one made since tells"


def test_rewards_from_before_a_restoring_undo_do_not_roll_back() -> None:
    story = Story(acting(a_spec(), remedies=("WiderAdapter", "RollBack"))).train(20, 0.6).validate(0.8)
    story.train(10, 0.6).raise_(S.GROUPS_UNIFORM)
    story.carry_out(decide(story.now())).train(WATCH, 0.1)
    undo = taken(decide(story.now()))
    assert undo.directive.restore[0] == 20
    assert decide(story.carry_out(undo).now()) is None, "it is there already"


def test_the_next_remedy_follows_a_rollback_that_did_not_help() -> None:
    story = collapsed()
    story.carry_out(decide(story.now())).train(WATCH, 0.02)
    assert remedy(decide(story.now())) == "OnPolicy"
    story.spec = acting(story.spec, remedies=("RollBack",))
    found = decide(story.now())
    assert isinstance(found, Kept), "there is nothing else, and it cannot be taken back"
    assert "RewardCollapsed is still raised" in found.why


def test_without_rollback_allowed_other_remedies_restore_no_step() -> None:
    story = collapsed(remedies=("OnPolicy", "CispoToPpo"))
    assert taken(decide(story.now())).directive.restore == []


def test_a_remedy_that_rolled_back_is_undone_by_setting_alone() -> None:
    story = gone_back().train(8, 0.02).raise_(S.REWARD_COLLAPSED)
    story.carry_out(decide(story.now())).train(WATCH, 0.02)
    undo = taken(decide(story.now()))
    assert undo.directive.undo
    assert undo.directive.restore == []
    assert undo.in_force == InForce(number=3)


def widened() -> Story:
    story = Story(acting(a_spec(), remedies=("WiderAdapter",))).train(30).validate(0.5)
    story.raise_(S.GROUPS_UNIFORM)
    return story.carry_out(decide(story.now())).train(WATCH)


def test_a_wider_adapter_is_taken_back_by_a_step_from_before() -> None:
    undo = taken(decide(widened().now()))
    assert undo.directive.undo
    assert undo.directive.restore[:3] == [30, 29, 28], "the validated one first"
    assert undo.in_force == InForce(number=2)


def test_no_step_with_a_wider_adapter_is_gone_back_to() -> None:
    story = widened().validate(0.9)
    undo = taken(decide(story.now()))
    assert 56 not in undo.directive.restore
    story.carry_out(undo).train(1)
    by_hand = obey("RollBack", story.now())
    assert taken(by_hand).directive.restore == [30], "56 validated best, and has the wider adapter"


def test_a_remedy_that_cannot_be_reverted_stays() -> None:
    story = widened()
    story.carry_out(decide(story.now()), refused="nothing is whole")
    [entry] = story.now().course.entries
    assert entry.state == "Kept"
    assert entry.why.endswith("it could not be taken back: nothing is whole")
    assert decide(story.now()) is None


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("", "it names no remedy; write one of RollBack, OnPolicy"),
        ("onpolicy", "it names no remedy"),
        ("OnPolicy@x", "it names no remedy"),
        ("OnPolicy; rm -rf /", "it names no remedy"),
        ("RollBack", "no complete validation"),
        ("Undo", "no change of a setting is in force"),
        ("WiderAdapter", "rollout servers were started with room for adapters of rank 32"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_in_words(order: str, says: str) -> None:
    story = Story(acting(a_spec(), policy="Alert")).train(3)
    found = obey(order, story.now())
    assert isinstance(found, RefusedOrder)
    assert (found.order, found.step) == (order, 3)
    assert says in found.why


@pytest.mark.parametrize("order", ["OnPolicy", "OnPolicy@2", " OnPolicy "])
def test_a_person_may_order_a_remedy_under_any_policy(order: str) -> None:
    story = Story(acting(a_spec(), policy="Alert", max_remedies=0)).train(3)
    found = taken(obey(order, story.now()))
    assert (found.order, found.signal, found.step) == (order, None, 4)
    assert found.in_force == InForce(number=1, max_steps_off_policy=0)


def test_an_order_to_go_back_names_other_steps_than_the_newest() -> None:
    story = Story().train(5).validate(0.8).train(5).validate(0.4)
    assert taken(obey("RollBack", story.now())).directive.restore == [5]


def test_an_ordered_rollback_sets_no_step_for_later_remedies() -> None:
    story = Story(acting(a_spec(), remedies=("OnPolicy", "RollBack"))).train(20, 0.6).validate(0.8)
    story.train(5, 0.02)
    story.carry_out(obey("RollBack", story.now())).train(WATCH, 0.6)
    story.carry_out(decide(story.now())).train(10, 0.02).raise_(S.POLICY_MISMATCH)
    found = taken(decide(story.now()))
    assert (found.directive.remedy, found.directive.restore) == ("OnPolicy", [])


def test_nothing_is_taken_back_in_the_last_step() -> None:
    """No later step would be trained without the change."""
    story = Story(acting(a_spec(), remedies=("LowerLearningRate",))).train(10).raise_(S.REWARD_COLLAPSED)
    story.carry_out(decide(story.now())).train(WATCH, 0.02)
    assert taken(decide(story.now())).directive.undo
    found = decide(story.now(steps=story.step + 1))
    assert isinstance(found, Kept)
    assert "it could not be taken back: no step is left" in found.why


def test_an_order_for_the_last_step_is_refused() -> None:
    story = Story().train(3)
    assert "no step is left" in getattr(obey("OnPolicy", story.now(steps=4)), "why", "")
    assert remedy(obey("OnPolicy", story.now(steps=5))) == "OnPolicy"


def test_a_person_may_order_a_rollback_though_nothing_is_wrong() -> None:
    story = Story().train(10).validate(0.8).train(10).validate(0.5).train(1)
    assert taken(obey("RollBack", story.now())).directive.restore == [10, 20]
    story = Story().train(10).validate(0.8)
    assert "the newest step is the best" in getattr(obey("RollBack", story.now()), "why", "")


def test_a_person_may_order_a_remedy_while_another_is_watched() -> None:
    story = uniform()
    story.carry_out(decide(story.now())).train(5)
    story.carry_out(obey("OnPolicy", story.now()))
    [first, second] = story.now().course.entries
    assert (first.state, first.why) == ("Replaced", "a person ordered it")
    assert (second.state, second.decision.order) == ("Watching", "OnPolicy")
    assert story.now().in_force == InForce(number=2, group_size=4, max_steps_off_policy=0)
    story.train(WATCH, 0.1)
    found = decide(story.now())
    assert isinstance(found, Kept), "what a person ordered is not taken back"
    assert "a person ordered it; the reward moved by -0.399" in found.why


def test_ordered_remedies_do_not_count_toward_the_jobs_limit() -> None:
    story = uniform(max_remedies=1)
    story.carry_out(obey("SmallerGroups", story.now())).train(WATCH)
    story.carry_out(decide(story.now()))
    found = taken(decide(story.now()))
    assert found.directive.remedy == "SmallerGroups", "halved once more, by itself"
    assert found.in_force.group_size == 2


def test_a_persons_undo_takes_back_the_last_change_then_earlier() -> None:
    story = Story().train(10).validate(0.8).train(3)
    for order in ("OnPolicy", "SmallerGroups", "RollBack"):
        story.carry_out(obey(order, story.now())).train(1)
    first = taken(obey("Undo", story.now()))
    assert (first.undoes, first.directive.remedy) == (2, "SmallerGroups")
    assert first.in_force == InForce(number=4, max_steps_off_policy=0)
    story.carry_out(first)
    second = taken(obey("Undo@2", story.now()))
    assert (second.undoes, second.in_force) == (1, InForce(number=5))
    story.carry_out(second)
    assert isinstance(obey("Undo@3", story.now()), RefusedOrder)


def test_only_what_a_remedy_set_is_taken_back() -> None:
    story = uniform()
    story.carry_out(decide(story.now())).train(2)
    story.carry_out(obey("ReferenceKl", story.now())).train(2)
    story.carry_out(obey("Undo", story.now()))
    assert story.now().in_force == InForce(number=3, group_size=4)
