from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway_api.records import PolicyVersion
from headway_rollout.weights.adapters import Adapters


def v(step: int) -> PolicyVersion:
    return PolicyVersion(incarnation=0, step=step)


def held(*steps: int) -> Adapters:
    return Adapters(loaded=tuple(v(step) for step in steps))


def test_the_newest_adapters_stay() -> None:
    after, what = held(1, 2, 3).retire(in_use=(), keep=3)
    assert after == held(1, 2, 3)
    assert what.unload == what.delete == ()


def test_older_adapters_are_unloaded_and_deleted_a_round_later() -> None:
    adapters, what = held(1, 2, 3, 4).retire(in_use=(), keep=3)
    assert (what.unload, what.delete) == ((v(1),), ())
    adapters, what = adapters.added(v(5)).retire(in_use=(), keep=3)
    assert (what.unload, what.delete) == ((v(2),), (v(1),))
    assert adapters.loaded == (v(3), v(4), v(5))


def test_a_version_in_use_is_not_unloaded_or_deleted() -> None:
    adapters, what = held(1, 2, 3, 4).retire(in_use=(v(1),), keep=3)
    assert what.unload == ()
    adapters, _ = adapters.retire(in_use=(), keep=3)
    _, what = adapters.retire(in_use=(v(1),), keep=3)
    assert what.delete == ()


def test_a_version_requested_again_counts_as_the_newest() -> None:
    _, what = held(1, 2, 3, 4).added(v(1)).retire(in_use=(), keep=3)
    assert what.unload == (v(2),)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.frozensets(st.integers(0, 8))), max_size=40), st.integers(1, 4)
)
def test_versions_in_use_stay_and_every_version_ends_once(
    rounds: list[tuple[int, frozenset[int]]], keep: int
) -> None:
    adapters, folders = Adapters(), set()
    for step, using in rounds:
        in_use = {v(s) for s in using}
        adapters = adapters.added(v(step))
        folders.add(v(step))
        before = adapters
        adapters, what = adapters.retire(in_use, keep)
        assert not in_use & {*what.unload, *what.delete}
        assert set(what.delete) <= set(before.draining), "deleted without having been unloaded a round before"
        assert adapters.holds(v(step))
        folders -= set(what.delete)
        assert folders == {*adapters.loaded, *adapters.draining}
        assert not set(adapters.loaded) & set(adapters.draining)
