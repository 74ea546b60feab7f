"""Weights that a kept delta is built on are never deleted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway_trainer.publish.links import built_on, delta_steps

some = st.sets(st.integers(0, 40))


def test_a_delta_needs_each_step_back_to_full_weights() -> None:
    assert built_on({7, 12}, deltas={2, 3, 6, 7, 8}) == {5, 6}


@given(some, st.sets(st.integers(1, 40)))
def test_the_step_before_every_kept_delta_is_kept_too(kept: set[int], deltas: set[int]) -> None:
    all_kept = kept | built_on(kept, deltas)
    assert all(step - 1 in all_kept for step in all_kept & deltas)


@given(some, st.sets(st.integers(1, 40)))
def test_only_versions_that_deltas_need_are_kept(kept: set[int], deltas: set[int]) -> None:
    needed = built_on(kept, deltas)
    assert all(step + 1 in deltas for step in needed)
    assert all(step + 1 in kept | needed for step in needed)


def test_deltas_are_recognized_by_their_file_name() -> None:
    uris = [
        "s3://b/job/weights/000000/model.safetensors",
        "s3://b/job/weights/000001/weights.delta",
        "s3://b/job/weights/000001/digests.json",
        "s3://b/job/weights/000012/weights.delta",
    ]
    assert delta_steps(uris, "s3://b/job/weights") == {1, 12}
