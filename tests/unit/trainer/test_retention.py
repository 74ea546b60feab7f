"""Which checkpoints and weights may be deleted, and which never."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway_trainer.checkpoint.retention import due, expired_checkpoints, expired_weights

steps = st.sets(st.integers(0, 60), min_size=1)
ranking = st.lists(st.integers(0, 60), unique=True)


@given(steps, steps, st.integers(1, 10))
def test_the_newest_whole_checkpoints_stay(whole: set[int], torn: set[int], keep: int) -> None:
    found = whole | torn
    durable = max(whole)
    kept = found - set(expired_checkpoints(found, whole, durable, keep))
    assert kept == set(sorted(whole)[-keep:]) | {step for step in found if step > durable}


@given(steps, steps, st.integers(1, 10), st.integers(0, 10), ranking)
def test_the_best_whole_checkpoints_stay_beside_them(
    whole: set[int], torn: set[int], last: int, best: int, ranked: list[int]
) -> None:
    durable = max(whole)
    found = {step for step in whole | torn if step <= durable}
    kept = found - set(expired_checkpoints(found, whole, durable, last, best, ranked))
    assert kept == set(sorted(whole)[-last:]) | set([step for step in ranked if step in whole][:best])


@given(steps, steps, st.integers(0, 10), ranking, steps)
def test_a_checkpoint_in_validation_stays_until_it_is_ranked(
    whole: set[int], torn: set[int], best: int, ranked: list[int], validating: set[int]
) -> None:
    durable = max(whole)
    found = {step for step in whole | torn if step <= durable}
    before = found - set(expired_checkpoints(found, whole, durable, 1, best, ranked))
    kept = found - set(expired_checkpoints(found, whole, durable, 1, best, ranked, validating))
    assert kept == (before | (whole & validating) if best else before)


@given(steps, st.data(), st.integers(1, 10), ranking)
def test_the_durable_checkpoint_and_later_ones_stay(
    found: set[int], data: st.DataObject, keep: int, ranked: list[int]
) -> None:
    """A checkpoint beyond the durable step is being written, or waits for a person.

    The durable one is never deleted, whatever its rank.
    """
    durable = data.draw(st.sampled_from(sorted(found)))
    whole = data.draw(st.sets(st.sampled_from(sorted(found))))
    assert all(step < durable for step in expired_checkpoints(found, whole, durable, keep, 1, ranked))


@given(steps, steps, steps, st.integers(0, 10))
def test_weights_in_use_stay(found: set[int], checkpoints: set[int], validated: set[int], lag: int) -> None:
    """Versions that the lag allows, one more that may be loading, checkpoints and validated steps stay."""
    latest = max(found)
    gone = set(expired_weights(found, latest, lag, checkpoints, validated))
    assert not gone & (checkpoints | validated | {0} | set(range(latest - lag - 1, latest + 1)))
    assert found - gone <= checkpoints | validated | {0} | set(range(latest - lag - 1, latest + 1))


def test_a_checkpoint_is_due_every_few_steps() -> None:
    assert [step for step in range(12) if due(step, 5)] == [0, 5, 10]
    assert all(due(step, 1) for step in range(5))
