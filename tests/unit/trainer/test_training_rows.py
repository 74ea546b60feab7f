"""How a batch becomes training rows: which episodes are scored, which groups filtered, what is counted."""

from __future__ import annotations

import learner_rig as rig
import numpy as np
import pytest

from headway_api.records import Batch, GroupRecord, PolicyVersion, TrainingRow, TurnSpan, VersionSpan
from headway_api.spec.algorithm import Advantage, AlgorithmSpec
from headway_trainer.batch import (
    MalformedRowError,
    mini_batches,
    scored_episodes,
    staleness_of,
    training_batch,
)
from headway_trainer.objective.presets import Objective

OBJECTIVE = Objective.of(AlgorithmSpec())


def group_advantages(group: GroupRecord, objective: Objective = OBJECTIVE) -> list[float]:
    """Advantage of each scored episode. All turns of an episode have the same advantage."""
    found = objective.advantages([scored_episodes(group)])[0]
    assert all(len(set(turns)) == 1 for turns in found)
    return [float(turns[0]) for turns in found]


def made(*groups: object, step: int = 1) -> Batch:
    return Batch(step=step, epoch=0, groups=list(groups))  # type: ignore[arg-type]


def test_an_infra_error_is_in_no_baseline() -> None:
    with_error = rig.group("t0-000000", [1.0, None, 0.0, 0.0])
    without = rig.group("t0-000000", [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(group_advantages(with_error), group_advantages(without))


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


@pytest.mark.parametrize("method", ["group_based", "monte_carlo"])
def test_a_group_that_is_uniform_up_to_rounding_is_not_trained(method: str) -> None:
    objective = Objective.of(AlgorithmSpec(advantage=Advantage(method=method)))
    sums = [0.1 + 0.2 - 0.3, 0.0, 0.0]  # 0.1 + 0.2 - 0.3 is 6e-17: centring would change nothing
    batch = training_batch(made(rig.group("a", sums), rig.group("b", [1.0, 0.0])), objective)
    assert sums[0] > 0
    assert [group.group_id for group in batch.groups] == ["b"]
    assert batch.train_tokens["a"] == 0


@pytest.mark.parametrize("method", ["monte_carlo", "reinforce_pp", "group_based_per_turn"])
@pytest.mark.parametrize("turns", [[1e300, -1e300], [float("inf"), 0.0], [float("nan"), 0.0], [1e7, 1.0]])
def test_rewards_too_large_for_metrics_name_their_group(method: str, turns: list[float]) -> None:
    """Otherwise reinforce_pp would make all advantages 0, and monte_carlo would raise a bare ValueError."""
    group = rig.group("t0-000007", [1.0, 0.0])
    spans = [
        TurnSpan(start=v.start, end=v.end, turn=n) for n, v in enumerate(group.episodes[0].rows[0].versions)
    ]
    row = group.episodes[0].rows[0].model_copy(update={"turns": spans})
    odd = group.episodes[0].model_copy(update={"turn_rewards": turns, "rows": [row]})
    whole = group.model_copy(update={"episodes": [odd, group.episodes[1]]})
    objective = Objective.of(AlgorithmSpec(advantage=Advantage(method=method)))
    with pytest.raises(MalformedRowError, match="group t0-000007: episode 0 has a reward of"):
        training_batch(made(rig.group("a", [1.0, 0.0]), whole), objective)


def test_a_group_with_one_scored_episode_is_not_trained() -> None:
    batch = training_batch(made(rig.group("a", [1.0, None, None])), OBJECTIVE)
    assert batch.groups == ()
    assert mini_batches(batch, 4, OBJECTIVE) == []


def test_every_action_token_of_an_episode_carries_its_advantage() -> None:
    group = rig.group("a", [1.0, 0.0, 0.5])
    batch = training_batch(made(group), OBJECTIVE)
    expected = group_advantages(group)
    rows = batch.groups[0].rows
    assert [row.advantages[row.mask][0] for row in rows] == pytest.approx(expected)
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


def test_staleness_counts_from_the_weights_that_are_trained() -> None:
    def span(tokens: int, step: int) -> VersionSpan:
        return VersionSpan(start=1, end=1 + tokens, version=PolicyVersion(incarnation=0, step=step))

    seen = staleness_of([span(30, 9), span(10, 7)], step=10)
    assert (seen.mean, seen.maximum) == (0.5, 2)
    assert staleness_of([], step=10).maximum == 0


def test_no_token_ages_by_a_step_without_training() -> None:
    old = VersionSpan(start=1, end=11, version=PolicyVersion(incarnation=0, step=5))
    assert [staleness_of([old], step=10, idle=idle).maximum for idle in ([], [7], [5, 7, 8])] == [4, 3, 2]
    group = rig.group("a", [1.0, 0.0])
    batch = Batch(step=4, epoch=0, groups=[group])
    younger = batch.model_copy(update={"idle": [2]})
    maximum = [training_batch(of, OBJECTIVE).staleness.maximum for of in (batch, younger)]
    assert maximum[1] == maximum[0] - 1


def test_a_sampled_first_token_is_refused() -> None:
    group = rig.group("a", [1.0, 0.0])
    span = VersionSpan(start=0, end=2, version=PolicyVersion(incarnation=0, step=0))
    row = TrainingRow(tokens=[1, 2], mask=[1, 1], logprobs=[-1.0, -1.0], versions=[span])
    broken = group.model_copy(
        update={"episodes": [group.episodes[0].model_copy(update={"rows": [row]}), group.episodes[1]]}
    )
    with pytest.raises(MalformedRowError, match="first token"):
        training_batch(made(broken), OBJECTIVE)


def test_a_row_without_action_tokens_is_left_out() -> None:
    group = rig.group("a", [1.0, 0.0])
    first = group.episodes[0]
    idle = TrainingRow(tokens=[1, 2], mask=[0, 0], logprobs=[0.0, 0.0], versions=[])
    padded = group.model_copy(
        update={"episodes": [first.model_copy(update={"rows": [*first.rows, idle]}), group.episodes[1]]}
    )
    assert len(training_batch(made(padded), OBJECTIVE).groups[0].rows) == 2


def with_turns(group: GroupRecord, *turn_rewards: list[float] | None) -> GroupRecord:
    """The group with spans of turns in its rows, and rewards by turn for the episodes that have a list."""
    episodes = []
    for episode, rewards in zip(group.episodes, turn_rewards, strict=True):
        [row] = episode.rows
        spans = [
            TurnSpan(start=span.start, end=span.end, turn=turn) for turn, span in enumerate(row.versions)
        ]
        changes = {"rows": [row.model_copy(update={"turns": spans})], "turn_rewards": rewards}
        episodes.append(episode.model_copy(update=changes))
    return group.model_copy(update={"episodes": episodes})


PER_TURN = Objective.of(AlgorithmSpec(advantage=Advantage(method="group_based_per_turn", normalize="none")))


def test_each_turn_carries_the_advantage_of_its_own_return() -> None:
    group = with_turns(rig.group("a", [1.0, 0.5]), [0.5, 0.5], [0.5, 0.0])
    [trained] = training_batch(made(group), PER_TURN).groups
    for row, source, expected in zip(
        trained.rows, group.episodes, ([0.25, 0.25], [-0.25, -0.25]), strict=True
    ):
        for span, value in zip(source.rows[0].turns, expected, strict=True):
            assert set(row.advantages[span.start : span.end]) == {np.float32(value)}
        assert not row.advantages[~row.mask].any()
    # A reward earned at the first turn gives the second turn no advantage.
    group = with_turns(rig.group("a", [1.0, 0.0]), [1.0, 0.0], [0.0, 0.0])
    [trained] = training_batch(made(group), PER_TURN).groups
    first, second = group.episodes[0].rows[0].turns
    row = trained.rows[0]
    assert (row.advantages[first.start], row.advantages[second.start]) == (0.5, 0.0)


def test_without_rewards_of_turns_the_turns_change_nothing() -> None:
    plain = rig.group("a", [1.0, 0.0, 0.5])
    with_spans = with_turns(plain, None, None, None)
    for objective in (OBJECTIVE, PER_TURN):
        one, other = (training_batch(made(group), objective).groups[0].rows for group in (plain, with_spans))
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.advantages, b.advantages)


def test_a_turn_without_reward_among_rewarded_turns_is_refused() -> None:
    group = with_turns(rig.group("a", [1.0, 0.0]), [1.0], [0.0])
    with pytest.raises(MalformedRowError, match="turn 1 has no reward"):
        training_batch(made(group), PER_TURN)


def moved(group: GroupRecord, by: int) -> GroupRecord:
    """The same rows, but their tokens belong to every second turn, starting at turn `by`."""
    found = []
    for episode in group.episodes:
        spans = [span.model_copy(update={"turn": by + 2 * span.turn}) for span in episode.rows[0].turns]
        row = episode.rows[0].model_copy(update={"turns": spans})
        found.append(episode.model_copy(update={"rows": [row]}))
    return group.model_copy(update={"episodes": found})


def test_reward_of_a_turn_without_tokens_goes_to_the_turn_before() -> None:
    """The turn followed a schema, so its tokens are context, like a tool's answer."""
    group = with_turns(rig.group("a", [1.0, 0.0]), [0.25, 0.5, 0.25], [0.0, 0.0, 0.0])
    first, _ = scored_episodes(moved(group, 0))
    assert first.turn_rewards == (0.75, 0.25)
    group = with_turns(rig.group("a", [1.0, 0.0]), [0.5, 0.25, 0.0, 0.125, 0.125], [0.0] * 5)
    first, _ = scored_episodes(moved(group, 1))
    assert first.turn_rewards == (0.25, 0.25), "no turn that is trained came before the first one"


def test_an_undelivered_turn_is_left_out_of_the_returns() -> None:
    group = with_turns(rig.group("a", [1.0, 0.0]), [0.25, 0.0, 0.75], [0.0, 0.0, 0.0])
    first, second = scored_episodes(moved(group, 0))
    assert (first.turn_rewards, second.turn_rewards) == ((0.25, 0.75), (0.0, 0.0))
    assert first.turn_tokens == tuple(span.end - span.start for span in group.episodes[0].rows[0].turns)


def test_an_episode_without_rows_counts_in_the_baseline() -> None:
    group = rig.group("a", [1.0, 0.0, 0.0])
    empty = group.episodes[2].model_copy(update={"rows": []})
    cut = group.model_copy(update={"episodes": [*group.episodes[:2], empty]})
    assert group_advantages(cut) == group_advantages(group)
    assert len(training_batch(made(cut), OBJECTIVE).groups[0].rows) == 2
