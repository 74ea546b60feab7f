"""Episodes are lost, truncated, or go on for too long."""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import World
from tests.signals.provocations.kit import (
    AGAIN,
    CALLS,
    COLLAPSED,
    RESPONSE,
    at,
    from_step,
    grown,
    job,
    multiplied,
    rate,
    reached,
    room,
    run,
)

from headway_api.signals import SignalName as S

RUNS: Final = (
    run(
        "lost-some", "chosen_on", "six of a hundred episodes lose their sandbox for good",
        *from_step(12, "sandboxes are lost", S.PERMANENT_FAILURES),
        step=12, lost=0.06,
    ),
    run(
        "lost-many", "chosen_on", "a sixth of the episodes lose their sandbox for good",
        *from_step(9, "sandboxes are lost", S.PERMANENT_FAILURES),
        spec=job(loss="cispo"), seed=81, step=9, lost=0.16,
    ),
    run(
        "lost-again", "held_out", "four of a hundred episodes lose their sandbox for good",
        *from_step(10, "sandboxes are lost", S.PERMANENT_FAILURES),
        seed=82, step=10, lost=0.04,
    ),
    run(
        "late-some", "chosen_on", "eight of a hundred episodes do not end in time",
        *from_step(12, "episodes are late", S.EPISODES_TIMED_OUT), COLLAPSED,
        seed=83, step=12, late=0.08,
    ),
    run(
        "late-many", "chosen_on", "a fifth of the episodes do not end in time",
        *from_step(8, "episodes are late", S.EPISODES_TIMED_OUT),
        spec=job(rate(1e-3)), seed=84, step=8, late=0.2,
    ),
    run(
        "late-again", "held_out", "one of twenty episodes does not end in time",
        *from_step(11, "episodes are late", S.EPISODES_TIMED_OUT),
        seed=85, step=11, late=0.05,
    ),
    run(
        "tokens-ten", "chosen_on", "maxTokens becomes less than an answer takes",
        *from_step(12, "maxTokens is 10", S.TURNS_TRUNCATED, S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        step=12, then=room(10, 6),
    ),
    run(
        "tokens-letters", "chosen_on", "what is said comes to be paid for: turns grow into maxTokens",
        reached(S.TURNS_TRUNCATED, "rollout/turns/token_limit_rate", 0.25),
        multiplied(S.LENGTH_EXPLODING, RESPONSE, 2),
        spec=job(rate(4e-3), at(1.2)), seed=86, step=9, judge="per_letter", steps=34,
    ),
    run(
        "tokens-again", "held_out", "maxTokens becomes a little less than most answers take",
        *from_step(9, "maxTokens is 11", S.TURNS_TRUNCATED),
        spec=job(rate(1e-3)), seed=87, step=9, then=room(11, 6),
    ),
    run(
        "context-full", "chosen_on", "contextLength becomes less than an episode takes",
        *from_step(12, "contextLength is 164", S.CONTEXT_FULL, S.REWARD_COLLAPSED),
        step=12, then=room(24, 6, 164),
    ),
    run(
        "context-tight", "chosen_on", "contextLength becomes less than many episodes take",
        *from_step(8, "contextLength is 168", S.CONTEXT_FULL),
        spec=job(rate(1e-3)), seed=88, step=8, then=room(24, 6, 168),
    ),
    run(
        "context-again", "held_out", "contextLength becomes less than an episode takes",
        *from_step(10, "contextLength is 166", S.CONTEXT_FULL),
        seed=89, step=10, then=room(24, 6, 166),
    ),
    run(
        "turns-three", "chosen_on", "maxTurns becomes less than the procedure takes",
        *from_step(12, "maxTurns is 3", S.TURNS_EXHAUSTED, S.REWARD_COLLAPSED, S.NOTHING_TO_TRAIN),
        step=12, then=room(32, 3),
    ),
    run(
        "calls-paid", "chosen_on", "every call comes to be paid for, and nothing else",
        multiplied(S.TOOL_CALLS_INFLATING, CALLS, 1.5),
        reached(S.TURNS_EXHAUSTED, "episodes/turn_limit_rate", 0.5),
        spec=job(rate(4e-3), at(1.2)), step=9, judge="per_call", steps=34,
    ),
    run(
        "calls-paid-too", "chosen_on", "calls come to be paid for beside the answer",
        multiplied(S.TOOL_CALLS_INFLATING, CALLS, 1.5),
        reached(S.TURNS_EXHAUSTED, "episodes/turn_limit_rate", 0.5),
        spec=job(rate(4e-3), at(1.2), room(32, 10), loss="cispo"), seed=90, step=9, judge="own_per_call",
        steps=38,
    ),
    run(
        "calls-again", "held_out", "every call comes to be paid for, and nothing else, with cispo",
        multiplied(S.TOOL_CALLS_INFLATING, CALLS, 1.5),
        reached(S.TURNS_EXHAUSTED, "episodes/turn_limit_rate", 0.5),
        spec=job(rate(4e-3), at(1.2), room(32, 8), loss="cispo"), seed=91, step=10, judge="per_call",
        steps=34,
    ),
    run(
        "long-letters", "chosen_on", "what is said comes to be paid for beside the answer",
        multiplied(S.LENGTH_EXPLODING, RESPONSE, 2),
        spec=job(rate(4e-3), at(1.2), room(96, 4, 640)), seed=92, step=5, judge="own_per_letter", steps=36,
    ),
    run(
        "long-again", "held_out", "what is said comes to be paid for, with cispo",
        multiplied(S.LENGTH_EXPLODING, RESPONSE, 2),
        spec=job(rate(4e-3), at(1.2), room(80, 4, 640), loss="cispo"), seed=95, step=9, judge="per_letter",
        steps=34,
    ),
    run(
        "repetitive", "chosen_on", "what is said is paid for; then the temperature falls: it is said again",
        grown(S.REPETITION, AGAIN),
        spec=job(rate(4e-3), at(1.2), room(64, 4, 640)), world=World("per_letter"), seed=93, steps=30,
        step=10, then=at(0.2),
    ),
    run(
        "repetitive-again", "held_out", "the same with another seed and at a lower temperature",
        grown(S.REPETITION, AGAIN),
        spec=job(rate(4e-3), at(1.2), room(64, 4, 640)), world=World("per_letter"), seed=194, steps=32,
        step=11, then=at(0.15),
    ),
    run(
        "garbled", "chosen_on", "the servers lose the closing tag of three calls in ten",
        *from_step(12, "calls cannot be read", S.TOOL_CALLS_MALFORMED),
        step=12, garbled=0.3,
    ),
    run(
        "unreadable", "chosen_on", "calls that cannot be read are paid for",
        reached(S.TOOL_CALLS_MALFORMED, "rollout/tool_calls/malformed_share", 0.25),
        grown(S.REPETITION, AGAIN),
        spec=job(rate(4e-3), at(1.2)), world=World("unreadable"), seed=96, steps=34,
    ),
    run(
        "garbled-again", "held_out", "the servers lose the closing tag of three calls in twenty",
        *from_step(10, "calls cannot be read", S.TOOL_CALLS_MALFORMED),
        spec=job(rate(1e-3)), seed=97, step=10, garbled=0.15,
    ),
)  # fmt: skip
