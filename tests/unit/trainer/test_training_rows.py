"""From a batch record to training rows: who is scored, who is filtered, what is counted."""

from __future__ import annotations

import learner_rig as rig
import numpy as np
import pytest

from headway_api.records import Batch, PolicyVersion, Row, VersionSpan
from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.batch import MalformedRow, group_advantages, lag, mini_batches, training_batch
from headway_trainer.objective.presets import Objective

OBJECTIVE = Objective.of(AlgorithmSpec())


def made(*groups: object, step: int = 1) -> Batch:
    return Batch(step=step, epoch=0, groups=list(groups))  # type: ignore[arg-type]


def test_an_infra_error_is_in_no_baseline() -> None:
    with_error = rig.group("t0-000000", [1.0, None, 0.0, 0.0])
    without = rig.group("t0-000000", [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(
        group_advantages(with_error, OBJECTIVE), group_advantages(without, OBJECTIVE)
    )


def test_an_infra_error_makes_no_row() -> None:
    batch = training_batch(made(rig.group("t0-000000", [1.0, None, 0.0])), OBJECTIVE)
    assert [len(group.rows) for group in batch.groups] == [2]
    assert batch.episodes == 3
    assert len(batch.advantages) == 2


def test_a_uniform_group_is_acknowledged_but_not_trained() -> None:
    batch = training_batch(made(rig.group("a", [1.0, 1.0]), rig.group("b", [1.0, 0.0])), OBJECTIVE)
    assert batch.group_ids == ("a", "b")
    assert [group.group_id for group in batch.groups] == ["b"]
    assert batch.train_tokens["a"] == 0
    assert batch.train_tokens["b"] == sum(row.length for row in batch.groups[0].rows)


def test_a_group_with_one_scored_episode_is_not_trained() -> None:
    batch = training_batch(made(rig.group("a", [1.0, None, None])), OBJECTIVE)
    assert batch.groups == ()
    assert mini_batches(batch, 4, OBJECTIVE) == []


def test_every_action_token_of_an_episode_carries_its_advantage() -> None:
    group = rig.group("a", [1.0, 0.0, 0.5])
    batch = training_batch(made(group), OBJECTIVE)
    expected = group_advantages(group, OBJECTIVE)
    rows = batch.groups[0].rows
    assert [row.advantages[row.mask][0] for row in rows] == pytest.approx(expected.tolist())
    for row in rows:
        assert len(set(row.advantages[row.mask])) == 1
        assert not row.advantages[~row.mask].any()
    total = sum(row.action_tokens for row in batch.groups[0].rows)
    assert total == sum(row.action_tokens for episode in group.episodes for row in episode.rows)


@pytest.mark.parametrize(("updates", "sizes"), [(1, [5]), (2, [3, 2]), (5, [1] * 5), (9, [1] * 5)])
def test_updates_divide_whole_groups(updates: int, sizes: list[int]) -> None:
    batch = training_batch(made(*(rig.group(f"g{n}", [1.0, 0.0]) for n in range(5))), OBJECTIVE)
    parts = mini_batches(batch, updates, OBJECTIVE)
    assert [len({row.group_id for row in part}) for part in parts] == sizes
    assert [row.group_id for part in parts for row in part] == [f"g{n}" for n in range(5) for _ in range(2)]
    for part in parts:
        assert sum(row.weight * row.action_tokens for row in part) == pytest.approx(1.0)


def test_lag_counts_from_the_weights_that_are_trained() -> None:
    def span(tokens: int, step: int) -> VersionSpan:
        return VersionSpan(start=1, end=1 + tokens, version=PolicyVersion(incarnation=0, step=step))

    seen = lag([span(30, 9), span(10, 7)], step=10)
    assert (seen.mean, seen.maximum) == (0.5, 2)
    assert lag([], step=10).maximum == 0


def test_a_sampled_first_token_is_refused() -> None:
    group = rig.group("a", [1.0, 0.0])
    span = VersionSpan(start=0, end=2, version=PolicyVersion(incarnation=0, step=0))
    row = Row(tokens=[1, 2], mask=[1, 1], logprobs=[-1.0, -1.0], versions=[span])
    broken = group.model_copy(
        update={"episodes": [group.episodes[0].model_copy(update={"rows": [row]}), group.episodes[1]]}
    )
    with pytest.raises(MalformedRow, match="first token"):
        training_batch(made(broken), OBJECTIVE)


def test_a_row_without_action_tokens_is_left_out() -> None:
    group = rig.group("a", [1.0, 0.0])
    first = group.episodes[0]
    idle = Row(tokens=[1, 2], mask=[0, 0], logprobs=[0.0, 0.0], versions=[])
    padded = group.model_copy(
        update={"episodes": [first.model_copy(update={"rows": [*first.rows, idle]}), group.episodes[1]]}
    )
    assert len(training_batch(made(padded), OBJECTIVE).groups[0].rows) == 2
