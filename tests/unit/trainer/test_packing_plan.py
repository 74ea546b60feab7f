"""Micro-batches: every row once, equally many on every rank, within the bound, and of near-equal cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway_trainer.packing import cost, plan

lengths = st.lists(st.integers(1, 300), max_size=80)
bounds = st.integers(1, 2000)
worlds = st.integers(1, 9)


@given(lengths, bounds, worlds)
def test_every_row_is_in_exactly_one_micro_batch(rows: list[int], bound: int, ranks: int) -> None:
    planned = plan(rows, bound, ranks)
    assert sorted(row for rank in planned for batch in rank for row in batch) == list(range(len(rows)))


@given(lengths, bounds, worlds)
def test_ranks_have_equally_many(rows: list[int], bound: int, ranks: int) -> None:
    planned = plan(rows, bound, ranks)
    assert len(planned) == ranks
    assert len({len(rank) for rank in planned}) == 1


@given(lengths, bounds, worlds)
def test_no_micro_batch_is_above_the_bound_unless_one_row_is(rows: list[int], bound: int, ranks: int) -> None:
    for rank in plan(rows, bound, ranks):
        for batch in rank:
            assert cost(batch, rows) <= bound or len(batch) == 1


@given(lengths, bounds, worlds)
def test_a_micro_batch_is_empty_only_where_rows_ran_out(rows: list[int], bound: int, ranks: int) -> None:
    batches = [batch for rank in plan(rows, bound, ranks) for batch in rank]
    if any(not batch for batch in batches):
        assert all(len(batch) <= 1 for batch in batches)


@given(st.lists(st.integers(50, 150), min_size=64, max_size=128), st.sampled_from([2, 4]))
def test_ranks_have_nearly_equal_cost(rows: list[int], ranks: int) -> None:
    totals = [sum(cost(batch, rows) for batch in rank) for rank in plan(rows, 1000, ranks)]
    largest = max(cost(batch, rows) for rank in plan(rows, 1000, ranks) for batch in rank)
    assert max(totals) - min(totals) <= largest


@given(lengths, bounds, worlds)
def test_the_plan_is_a_function_of_its_arguments(rows: list[int], bound: int, ranks: int) -> None:
    assert plan(rows, bound, ranks) == plan(list(rows), bound, ranks)


def test_equal_rows_split_evenly_over_two_ranks() -> None:
    assert [sum(len(batch) for batch in rank) for rank in plan([10] * 8, 10_000, 2)] == [4, 4]


def test_nothing_to_train_is_no_micro_batch() -> None:
    assert plan([], 100, 3) == [[], [], []]
