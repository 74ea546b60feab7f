"""What may be deleted, and what never."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway_trainer.checkpoint.retention import expired_checkpoints, expired_weights

steps = st.sets(st.integers(0, 60), min_size=1)


def never(step: int) -> bool:
    """Nothing was evaluated out of turn."""
    return False


@given(steps, st.integers(1, 10))
def test_the_newest_checkpoints_stay(found: set[int], keep: int) -> None:
    latest = max(found)
    kept = found - set(expired_checkpoints(found, latest, keep))
    assert kept == set(sorted(found)[-keep:])


@given(steps, st.data(), st.integers(1, 10))
def test_what_latest_points_to_is_never_deleted(found: set[int], data: st.DataObject, keep: int) -> None:
    latest = data.draw(st.sampled_from(sorted(found)))
    assert latest not in expired_checkpoints(found, latest, keep)
    assert latest not in expired_weights(found, latest, keep, 10, 3, never)


@given(steps, st.data())
def test_nothing_beyond_latest_is_touched(found: set[int], data: st.DataObject) -> None:
    latest = data.draw(st.sampled_from(sorted(found)))
    assert all(step < latest for step in expired_checkpoints(found, latest, 1))
    assert all(step < latest for step in expired_weights(found, latest, 1, 0, 0, never))


def test_weights_that_were_evaluated_or_may_be_in_use_stay() -> None:
    assert expired_weights(
        set(range(26)), 25, keep_last=2, evaluated_every=10, max_lag=3, evaluated=never
    ) == [step for step in range(1, 21) if step not in (10, 20)]


def test_the_untrained_weights_stay() -> None:
    assert 0 not in expired_weights(
        set(range(10)), 9, keep_last=1, evaluated_every=0, max_lag=0, evaluated=never
    )


def test_weights_that_were_evaluated_by_an_earlier_rule_stay() -> None:
    """evaluation.everySteps may change while the job is suspended; status.checkpoints.best may be of then."""
    found = expired_weights(
        set(range(26)), 25, 2, evaluated_every=7, max_lag=3, evaluated={10, 20}.__contains__
    )
    assert found == [step for step in range(1, 21) if step not in (7, 10, 14, 20)]
