"""Micro-batches have every row once, equally many on each rank, within limits of tokens, padding, cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_trainer.packing import WASTE, Layout, plan

lengths = st.lists(st.integers(1, 300), max_size=80)
bounds = st.integers(1, 2000)
worlds = st.integers(1, 9)
layouts = st.builds(Layout, packed=st.booleans(), quadratic=st.sampled_from([0.0, 0.001, 0.1]))


@given(lengths, bounds, worlds, layouts)
def test_every_row_is_in_exactly_one_micro_batch(
    rows: list[int], bound: int, ranks: int, layout: Layout
) -> None:
    planned = plan(rows, bound, ranks, layout)
    assert sorted(row for rank in planned for batch in rank for row in batch) == list(range(len(rows)))


@given(lengths, bounds, worlds, layouts)
def test_ranks_have_equally_many_micro_batches(
    rows: list[int], bound: int, ranks: int, layout: Layout
) -> None:
    planned = plan(rows, bound, ranks, layout)
    assert len(planned) == ranks
    assert len({len(rank) for rank in planned}) == 1


@given(lengths, bounds, worlds, layouts)
def test_no_micro_batch_is_above_the_bound_unless_one_row_is(
    rows: list[int], bound: int, ranks: int, layout: Layout
) -> None:
    for rank in plan(rows, bound, ranks, layout):
        for batch in rank:
            assert layout.tokens(batch, rows) <= bound or len(batch) == 1


@given(lengths, bounds, worlds, layouts)
def test_padding_wastes_no_more_than_its_share(
    rows: list[int], bound: int, ranks: int, layout: Layout
) -> None:
    for rank in plan(rows, bound, ranks, layout):
        for batch in rank:
            sent, kept = layout.tokens(batch, rows), sum(rows[row] for row in batch)
            assert sent - kept <= (0 if layout.packed else WASTE * sent)


@given(lengths, bounds, worlds, layouts)
def test_rows_in_a_micro_batch_are_sorted_by_length(
    rows: list[int], bound: int, ranks: int, layout: Layout
) -> None:
    for rank in plan(rows, bound, ranks, layout):
        for batch in rank:
            assert [rows[row] for row in batch] == sorted((rows[row] for row in batch), reverse=True)


@given(lengths, bounds, worlds)
def test_rectangles_are_empty_only_where_rows_ran_out(rows: list[int], bound: int, ranks: int) -> None:
    batches = [batch for rank in plan(rows, bound, ranks) for batch in rank]
    if any(not batch for batch in batches):
        assert all(len(batch) <= 1 for batch in batches)


@given(lengths, bounds, worlds, st.sampled_from([0.0, 0.01]))
def test_packed_micro_batches_are_at_most_twice_the_minimum(
    rows: list[int], bound: int, ranks: int, quadratic: float
) -> None:
    """A new micro-batch is begun only if no other has room, so all are at least half full."""
    alone = sum(row >= bound for row in rows)
    tokens = sum(row for row in rows if row < bound)
    limit = ranks * (math.ceil((alone + 2 * tokens / bound) / ranks) + 1)
    assert sum(map(len, plan(rows, bound, ranks, Layout(packed=True, quadratic=quadratic)))) <= limit


@given(st.lists(st.integers(1, 300), min_size=1, max_size=80), worlds, st.sampled_from([0.0, 0.001, 0.1]))
def test_the_costliest_micro_batch_is_within_one_row_of_the_mean(
    rows: list[int], ranks: int, quadratic: float
) -> None:
    layout = Layout(packed=True, quadratic=quadratic)
    costs = [layout.cost(batch, rows) for rank in plan(rows, 100_000, ranks, layout) for batch in rank]
    # No plan with as many micro-batches can have a lower maximum than the larger of these two.
    mean, largest = sum(costs) / len(costs), max(layout.of_row(row) for row in rows)
    assert max(costs) <= mean + largest + 1e-9
    assert max(costs) <= 2 * max(mean, largest) + 1e-9


@given(st.lists(st.integers(1, 300), min_size=1, max_size=80), bounds, worlds, layouts)
def test_ranks_wait_for_one_another_at_most_one_micro_batch(
    rows: list[int], bound: int, ranks: int, layout: Layout
) -> None:
    """Rounds are in order of falling cost, so all waits of ranks together are at most one micro-batch."""
    planned = plan(rows, bound, ranks, layout)
    rounds = [[layout.cost(batch, rows) for batch in step] for step in zip(*planned, strict=True)]
    waited = sum(max(costs) - min(costs) for costs in rounds)
    assert waited <= max(max(costs) for costs in rounds) + 1e-6
    totals = [sum(costs) for costs in zip(*rounds, strict=True)]
    assert max(totals) - min(totals) <= waited + 1e-6


@given(lengths, bounds, worlds, layouts)
def test_the_plan_is_a_function_of_its_arguments(
    rows: list[int], bound: int, ranks: int, layout: Layout
) -> None:
    assert plan(rows, bound, ranks, layout) == plan(list(rows), bound, ranks, layout)


@pytest.mark.parametrize("packed", [True, False])
def test_equal_rows_split_evenly_over_two_ranks(packed: bool) -> None:
    planned = plan([10] * 8, 10_000, 2, Layout(packed=packed))
    assert [sum(len(batch) for batch in rank) for rank in planned] == [4, 4]


def test_attention_counts_in_the_balance() -> None:
    """A row of 100 tokens costs as much as four of 50 by pairs of tokens, and as two of 50 by tokens."""
    rows = [100, 50, 50, 50, 50]
    by_pairs = plan(rows, 10_000, 2, Layout(packed=True, quadratic=1000.0))
    by_tokens = plan(rows, 10_000, 2, Layout(packed=True, quadratic=0.0))
    assert sorted(sum(map(len, rank)) for rank in by_pairs) == [1, 4]
    assert sorted(sum(map(len, rank)) for rank in by_tokens) == [2, 3]


@pytest.mark.parametrize("packed", [True, False])
def test_nothing_to_train_makes_no_micro_batch(packed: bool) -> None:
    assert plan([], 100, 3, Layout(packed=packed)) == [[], [], []]
