"""MTRL's protocol as a state machine: which calls are allowed, by whom, and when."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.sandbox_api import ToolReply
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.gateway.refusals import NOT_IN_VALID_STATUS, GatewayError
from headway_coordinator.gateway.rollouts import REMEMBERED, Rollout, Rollouts, Status

ARN = "arn:headway:rltrainingjob::tests:job/uid"


class NoTools:
    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        raise AssertionError(name)


def rollout(turns: int = 3, *, takes_reward: bool = True, expires_at: float = math.inf) -> Rollout:
    session = Session(episode_id="t0-000001-2-0", seed=1, sampling=Sampling(1.0, 1.0, 8))
    session.turns = [None] * turns  # type: ignore[list-item]
    return Rollout(
        session=session,
        job_arn=ARN,
        sandbox=NoTools(),
        tools=[],
        reward_range=(0.0, 1.0),
        takes_reward=takes_reward,
        expires_at=expires_at,
    )


def refused(code: str, status: int = 400) -> Any:
    return pytest.raises(GatewayError, check=lambda error: (error.code, error.status) == (code, status))


def test_a_rollout_is_completed_and_then_rewarded() -> None:
    one = rollout()
    one.require_open("a turn")
    one.complete("ready")
    assert one.status is Status.READY
    one.reward([0.5], {"accuracy": 1})
    assert (one.status, one.rewards, one.metrics) == (Status.REWARD_RECEIVED, [0.5], {"accuracy": 1.0})


def test_rewards_by_turn_are_accepted() -> None:
    one = rollout(turns=3)
    one.complete("ready")
    one.reward([0, 0.25, 0.75])
    assert one.rewards == [0.0, 0.25, 0.75]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([math.nan], "reward_not_finite"),
        ([math.inf], "reward_not_finite"),
        ([10**400], "reward_not_finite"),
        ([1.5], "reward_out_of_range"),
        ([-0.1], "reward_out_of_range"),
        ([0.5, 0.5, 0.5], "reward_out_of_range"),
        ([0.5, 0.5], "reward_cardinality"),
        ([True], "reward_not_a_number"),
        (["1"], "reward_not_a_number"),
        ([None], "reward_not_a_number"),
        ([], "invalid_value"),
        (0.5, "invalid_value"),
        (None, "invalid_value"),
    ],
)
def test_an_invalid_reward_is_refused_and_may_be_corrected(values: object, code: str) -> None:
    one = rollout(turns=3)
    one.complete("ready")
    with refused(code) as caught:
        one.reward(values)
    assert "Rewards" in str(caught.value)
    assert one.rewards is None
    one.reward([1.0])
    assert one.rewards == [1.0]


@pytest.mark.parametrize("metrics", [[1], {"a": "1"}, {"a": math.nan}, {"a": True}])
def test_metrics_are_finite_numbers_by_name(metrics: object) -> None:
    one = rollout()
    one.complete("ready")
    with refused("invalid_value") if not _is_nan(metrics) else refused("reward_not_finite"):
        one.reward([1.0], metrics)
    assert one.rewards is None


@pytest.mark.parametrize(
    ("values", "metrics"),
    [
        ([1e200], None),
        ([-1e200], None),
        ([1e300, -1e300, 0.0], None),
        ([2e6], None),
        ([0.5], {"gain": 1e200}),
        ([0.5], {"gain": -1e13}),
    ],
)
def test_a_number_too_large_for_a_metric_is_refused(values: list[float], metrics: object) -> None:
    """The number is refused even within the job's own range, because its square would not be finite."""
    one = rollout()
    one.reward_range = (-1e308, 1e308)
    one.complete("ready")
    with refused("reward_out_of_range"):
        one.reward(values, metrics)
    assert (one.rewards, one.metrics) == (None, {})


MANY = {str(number): 1.0 for number in range(1001)}


@pytest.mark.parametrize("metrics", [MANY, {"x" * 201: 1.0}], ids=["many", "long"])
def test_metrics_are_few_and_have_short_names(metrics: object) -> None:
    one = rollout()
    one.complete("ready")
    with refused("invalid_value") as caught:
        one.reward([0.5], metrics)
    assert len(str(caught.value)) < 500


def _is_nan(metrics: object) -> bool:
    return isinstance(metrics, dict) and isinstance(metrics["a"], float) and math.isnan(metrics["a"])


def test_an_impossible_transition_has_the_error_of_the_sdk() -> None:
    early, done, lost, over = rollout(), rollout(), rollout(), rollout()
    done.complete("ready")
    done.reward([1.0])
    lost.complete("failed", "no idea")
    over.close()
    for one, attempt in [
        (early, lambda r: r.reward([1.0])),
        (done, lambda r: r.complete("ready")),
        (done, lambda r: r.complete("failed")),
        (done, lambda r: r.reward([0.0])),
        (lost, lambda r: r.reward([0.0])),
        (lost, lambda r: r.complete("ready")),
        (over, lambda r: r.complete("ready")),
    ]:
        before = (one.status, one.rewards, one.error)
        with refused("trajectory_status", 409) as caught:
            attempt(one)
        assert "Cannot transition trajectory t0-000001-2-0" in str(caught.value)
        assert caught.value.reason == NOT_IN_VALID_STATUS
        assert (one.status, one.rewards, one.error) == before
    for one in (done, lost, over):
        with refused("trajectory_status", 409) as caught:
            one.require_open("a turn")
        assert "not in valid status" in str(caught.value)


def test_the_same_client_token_is_the_same_call() -> None:
    one = rollout()
    one.complete("ready", client_token="a")
    one.complete("ready", client_token="a")
    one.reward([0.5], client_token="b")
    one.reward([0.9], client_token="b")
    assert one.rewards == [0.5]
    with refused("trajectory_status", 409):
        one.complete("ready", client_token="c")


def test_an_agent_that_is_not_asked_for_a_reward_cannot_give_one() -> None:
    one = rollout(takes_reward=False)
    one.complete("ready")
    with refused("reward_not_accepted", 403):
        one.reward([1.0])
    assert one.rewards is None


@pytest.mark.parametrize(
    ("arn", "trajectory", "fine"),
    [
        (None, None, True),
        (ARN, "t0-000001-2-0", True),
        ("", "", True),
        ("arn:aws:other", None, False),
        (None, "t0-000001-3-0", False),
        (ARN, "Ümlaut", False),
    ],
)
def test_a_token_is_valid_for_a_single_trajectory(
    arn: str | None, trajectory: str | None, fine: bool
) -> None:
    one = rollout()
    if fine:
        one.check(arn, trajectory)
    else:
        with refused("trajectory_mismatch", 403):
            one.check(arn, trajectory)


def test_tokens_are_long_distinct_and_free_of_digits() -> None:
    """The SDK treats an error with "404" in its text as a lost trajectory, and its URLs contain tokens."""
    tokens = {rollout().token for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 43 and token.isalpha() and token.isascii() for token in tokens)


def test_rollout_is_found_while_open_and_remembered_for_a_while() -> None:
    now = 0.0
    rollouts = Rollouts(lambda: now)
    with refused("trajectory_not_found", 404):
        rollouts.find("nobody's")
    with rollouts.open(rollout(expires_at=10.0)) as one:
        assert rollouts.find(one.token) is one
        now = 11.0
        with refused("token_expired", 401):
            rollouts.find(one.token)
        now = 0.0
    assert rollouts.find(one.token).closed
    for _ in range(REMEMBERED):
        with rollouts.open(rollout()):
            pass
    with refused("trajectory_not_found", 404):
        rollouts.find(one.token)


async def test_a_wait_ends_at_one_of_its_statuses() -> None:
    one = rollout()
    waits = [
        asyncio.create_task(one.until(Status.READY, Status.REWARD_RECEIVED)),
        asyncio.create_task(one.until(Status.REWARD_RECEIVED)),
    ]
    await asyncio.sleep(0)
    one.complete("ready")
    await asyncio.wait_for(waits[0], 1)
    assert not waits[1].done()
    one.reward([1.0])
    await asyncio.wait_for(waits[1], 1)


@given(
    st.lists(
        st.sampled_from(["ready", "failed", "reward", "turn", "close"]),
        max_size=8,
    )
)
def test_only_a_rollout_that_was_ready_gets_a_reward(words: list[str]) -> None:
    one = rollout()
    was_ready = False
    for word in words:
        with suppress(GatewayError):
            if word == "turn":
                one.require_open("a turn")
                assert one.status is Status.PENDING
            elif word == "close":
                one.close()
            elif word == "reward":
                one.reward([0.5])
                assert was_ready
                assert not one.closed
            else:
                one.complete(word)
                was_ready = was_ready or word == "ready"
    assert (one.rewards is not None) == (one.status is Status.REWARD_RECEIVED)


def test_only_the_first_of_two_agent_runs_to_act_is_used() -> None:
    rollouts = Rollouts()
    with rollouts.open(rollout()) as one:
        first = one.token
        assert rollouts.renew(one)
        second = one.token
        assert first != second
        assert rollouts.find(first) is rollouts.find(second) is one
        one.claim(first)
        one.claim(first)
        with refused("trajectory_status", 409) as caught:
            one.claim(second)
        assert "not in valid status" in str(caught.value)
        assert not rollouts.renew(one)
        assert one.token == second
    assert rollouts.find(first).closed
    assert rollouts.find(second).closed


def test_a_closed_rollout_keeps_its_status_without_its_turns() -> None:
    rollouts = Rollouts()
    with rollouts.open(rollout(turns=3)) as one:
        one.complete("ready")
    late = rollouts.find(one.token)
    assert (late.trajectory_id, late.status, late.session.turns) == (one.trajectory_id, Status.READY, [])
    with refused("trajectory_status", 409):
        late.reward([0.1, 0.2, 0.3])
