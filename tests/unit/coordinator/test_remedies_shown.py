"""How a remedy is shown: in status, report, `/metrics` and MLflow, and in the answer to an order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from job_rig import Job
from played_jobs import Story, a_small_spec, a_spec, acting
from watched import a_signal

from headway_analysis.remedies.policy import decide, obey
from headway_analysis.signals.history import History
from headway_api import status as st
from headway_api.decisions import Measured
from headway_api.in_force import Directive
from headway_api.remedies import applied
from headway_api.signals import SignalName as S
from headway_coordinator import projections
from headway_coordinator.remedies import shown


def changed() -> Story:
    """A job that rolled back, which helped for a while. Then it rolled back and changed the algorithm."""
    story = Story(acting(a_spec(), remedies=("RollBack", "CispoToPpo", "LowerLearningRate")))
    story.train(20, 0.6).validate(0.8).train(40, 0.6).train(10, 0.02).raise_(S.REWARD_COLLAPSED)
    story.carry_out(decide(story.now())).train(5, 0.6).calm()
    story.train(8, 0.02).raise_(S.REWARD_COLLAPSED)
    return story.carry_out(decide(story.now()))


def test_change_shows_what_was_changed_why_and_its_outcome() -> None:
    story = changed().train(3, 0.6)
    first, second = shown.remediations(story.now().course, story.spec)
    assert first.as_object() == {
        "number": 1,
        "step": 71,
        "remedy": "RollBack",
        "signal": "RewardCollapsed",
        "action": "goes back to the weights of step 20",
        "state": "Replaced",
        "restoredStep": 20,
        "watchedUntil": 84,
        "before": {
            "reward": "0.03 (0.0242 to 0.0358)",
            "steps": 10,
            "validatedStep": 20,
            "externalScore": "0.8",
        },
        "after": {
            "reward": "0.145 (-0.0285 to 0.3185)",
            "steps": 10,
            "validatedStep": 20,
            "externalScore": "0.8",
        },
        "message": "RewardCollapsed: it is 0.5. "
        "Replaced: RewardCollapsed: it is 0.5; going back alone did not last",
    }
    assert second.action == ("goes back to the weights of step 20; loss cispo -> ppo, its bounds 0.8 and 1.2")
    assert (second.state, second.watched_until, second.after) == ("Watching", None, None)


def test_a_refused_change_shows_what_it_would_have_done() -> None:
    story = Story(acting(a_spec(), remedies=("RollBack",)))
    story.train(20, 0.6).validate(0.8).train(40, 0.6).train(10, 0.02).raise_(S.REWARD_COLLAPSED)
    story.carry_out(decide(story.now()), refused="nothing is whole")
    [entry] = shown.remediations(story.now().course, story.spec)
    assert (entry.state, entry.action, entry.restored_step) == (
        "Refused",
        "goes back to the weights of step 20",
        None,
    )
    assert entry.message.endswith("Refused: NotApplicable: nothing is whole")


def test_status_has_the_last_eight_changes() -> None:
    story = Story(a_spec()).train(3)
    for number in range(10):
        story.carry_out(obey(f"LowerLearningRate@{number}", story.now())).train(1)
    found = shown.remediations(story.now().course, story.spec)
    assert [entry.number for entry in found] == [*range(3, 11)]
    assert len(shown.report(story.now().course, story.spec)) == 10
    assert found[-1].order == "LowerLearningRate@9"


def test_without_interval_or_validation_the_rest_is_shown() -> None:
    assert shown.measurements(Measured()).as_object() == {"steps": 0}
    assert shown.measurements(Measured(reward=0.5, steps=1)).as_object() == {"reward": "0.5", "steps": 1}


def test_changes_are_counted_by_their_state() -> None:
    counted = {sample.labels["state"]: sample.value for sample in shown.samples(changed().now().course)}
    assert counted == {"Watching": 1, "Kept": 0, "Undone": 0, "Replaced": 1, "Refused": 0}


def test_mlflow_run_has_a_tag_per_change_and_current_parameters() -> None:
    story = changed()
    context = story.now()
    found = shown.tags(context.course, story.spec, context.now)
    assert found["headway.dev/remedy/000001"] == (
        "step 71: RollBack (RewardCollapsed): goes back to the weights of step 20: Replaced"
    )
    assert found["headway.dev/now/loss_fn"] == "ppo"
    assert found["headway.dev/now/clip_high_threshold"] == "1.2"
    assert "headway.dev/now/learning_rate" not in found
    story.train(25, 0.02)
    context = story.carry_out(decide(story.now())).now()
    found = shown.tags(context.course, story.spec, context.now)
    assert found["headway.dev/now/loss_fn"] == "cispo", "the tag shows that it was taken back"
    assert found["headway.dev/remedy/000002"].endswith("Undone")


def test_the_status_shows_the_algorithm_that_is_in_force() -> None:
    story = changed()
    before, after = (
        projections.algorithm(story.spec),
        projections.algorithm(applied(story.spec, story.now().in_force)),
    )
    assert (before.loss, before.batch_size, before.group_size) == ("cispo", 2, 8)
    assert (before.learning_rate, before.lora_rank, before.lora_alpha) == ("0.00004", 32, 64)
    assert (after.loss, after.clip_low, after.clip_high) == ("ppo", "0.8", "1.2")
    assert after.as_object().keys() == before.as_object().keys()


@pytest.mark.parametrize("refuses", [True, False])
async def test_every_order_is_answered(tmp_path: Path, refuses: bool) -> None:
    job = Job(tmp_path, a_small_spec(steps=12))
    async with job.coordinator() as (training, learner, running):
        between = []

        def current_order() -> st.RemedyOrder | None:
            return shown.order(training.remedies)

        def on_directive(directive: Directive) -> bool:
            between.append(current_order())
            return refuses

        learner.refuses = on_directive
        await learner.run(steps=2)
        assert current_order() is None
        training.remedies.order = "OnPolicy"
        assert current_order() == st.RemedyOrder(order="OnPolicy", state="Waiting")
        await learner.run(steps=1)
        assert between == [st.RemedyOrder(order="OnPolicy", state="Waiting")], "until the learner has done it"
        if refuses:
            why = "NotApplicable: it was told to refuse"
            assert current_order() == st.RemedyOrder(order="OnPolicy", state="Refused", step=3, message=why)
        else:
            assert current_order() == st.RemedyOrder(order="OnPolicy", state="Taken", step=3)
            training.remedies.order = "Undo"
            await learner.run(steps=1)
            assert current_order() == st.RemedyOrder(order="Undo", state="Taken", step=4)
        training.remedies.order = "Nonsense"
        await learner.run(steps=1)
        found = current_order()
        assert found is not None
        assert (found.state, found.step) == ("Refused", 3 if refuses else 4)
        assert (found.message or "").startswith("it names no remedy; write one of")
        training.remedies.order = None
        assert current_order() is None
        await asyncio.gather(learner.run(), running)
        training.remedies.order = "OnPolicy@9"
        assert current_order() == st.RemedyOrder(
            order="OnPolicy@9", state="Refused", message="no step is left"
        )


async def test_signals_use_the_settings_in_force_at_each_step(tmp_path: Path) -> None:
    bounds: dict[int, int] = {}

    def judge(history: History) -> None:
        bounds[history.now] = history.job.max_steps_off_policy

    job = Job(tmp_path, a_small_spec(steps=6))
    job.catalogue = [a_signal(judge)]
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=2)
        training.remedies.order = "OnPolicy"
        await learner.run(steps=2)
        training.remedies.order = "Undo"
        await asyncio.gather(learner.run(), running)
    whole = {1: 2, 2: 2, 4: 0, 6: 2}
    assert bounds == whole
    bounds.clear()
    async with job.coordinator():
        assert bounds == whole, "a successor judges each step as its predecessor did"
