"""A made-up finished evaluation: three candidates, one of them an endpoint, and a fourth that failed.

Rows have tasks and clusters. Tries differ in reward, score, tools, limits and outcome, and some were retried.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from headway_analysis.billing.segments import Days, fold
from headway_analysis.comparison import Comparison, compare_all
from headway_analysis.gate import Bound, GateSpec
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.tries import Rules, Try, TryPlace, tries_of
from headway_analysis.report.document import CandidateTries, Finished
from headway_api.config import EvalConfig
from headway_api.prices import DatedPrices, PriceBook, Prices
from headway_api.records import (
    EpisodeRecord,
    GroupRecord,
    Outcome,
    PolicyVersion,
    Purpose,
    TrainingRow,
    Turn,
    TurnSpan,
    VersionSpan,
)
from headway_coordinator.ledger import events

ROWS, TRIES, THRESHOLD, MAX_TURNS, KS = 40, 4, 0.75, 4, (1, 2, 4)
CHANCE = {"base": 0.35, "tuned": 0.65, "reference": 0.7}
MIDNIGHT = 1_767_312_000.0
"""2026-01-02, 00:00 UTC, when the prices of `BOOK` change."""
BOOK = PriceBook(
    name="ours",
    entries=(
        DatedPrices.model_validate(
            {
                "since": "2026-01-01",
                "source": "a test",
                "prices": {
                    "evaluationPrefill": "0.13",
                    "evaluationCachedPrefill": "0.026",
                    "evaluationSample": "0.4",
                    "discarded": "0.05",
                    "endpointPrompt": "2.5",
                    "endpointSample": "99",
                    "sandboxSeconds": "0.0001",
                },
                "models": {"frontier": {"endpointSample": "10"}, "front*": {"endpointPrompt": "77"}},
            }
        ),
        DatedPrices(
            since="2026-01-02",  # type: ignore[arg-type]
            prices=Prices(
                evaluation_prefill="0",
                evaluation_cached_prefill="0",
                evaluation_sample="0.8",
                endpoint_prompt="0",
                endpoint_sample="12",
                sandbox_seconds="0",
            ),
        ),
    ),
)


def config(**changes: Any) -> EvalConfig:
    """The job."""
    spec = {
        "seed": 7,
        "candidates": [
            {"name": "base", "model": {"base": "hf://org/model"}},
            {"name": "tuned", "checkpoint": {"job": "train", "step": 12}},
            {
                "name": "reference",
                "endpoint": {"url": "https://user:secret@api.example/v1?key=secret", "model": "big"},
            },
            {"name": "gone", "checkpoint": {"job": "lost"}},
        ],
        "data": {"uri": "s3://b/test.jsonl", "taskColumn": "kind", "clusterColumn": "document"},
        "agent": {"builtin": {"maxTurns": MAX_TURNS}},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "evaluation": {
            "groupSize": TRIES,
            "sampling": {"temperature": 0.8},
            "passK": list(KS),
            "successThreshold": THRESHOLD,
        },
        "gate": {
            "candidate": "tuned",
            "minimum": "0.3",
            "mustBeat": "base",
            "noWorse": [{"metric": "completion", "margin": "0.2"}],
        },
        "output": {"uri": "s3://b/o"},
    } | changes
    resolved = [
        {"name": "base", "kind": "Model", "base": "hf://org/model", "dtype": "bfloat16", "serverSet": 0},
        {
            "name": "tuned",
            "kind": "Adapter",
            "base": "hf://org/model",
            "dtype": "bfloat16",
            "loraRank": 8,
            "job": "train",
            "step": 12,
            "uri": "s3://b/runs/ns/train/u/weights/000012",
            "serverSet": 0,
        },
        {"name": "reference", "kind": "Endpoint"},
    ]
    why = "spec.candidates[gone].checkpoint.job names lost, which does not exist: name an RLTrainingJob"
    return EvalConfig.model_validate(
        {
            "name": "judged",
            "namespace": "ns",
            "uid": "0123456789abcdef",
            "spec": spec,
            "candidates": resolved,
            "unresolved": {"gone": why},
        }
    )


def group(
    candidate: str,
    row: int,
    tries: int = TRIES,
    sampled_by: Literal["servers", "endpoint", "nobody"] | None = None,
) -> GroupRecord:
    """The tries of one candidate at one row, which depend only on the two."""
    rng = random.Random(f"{candidate}/{row}")
    group_id = f"e-{candidate}-{row:06d}"
    by = sampled_by or ("endpoint" if candidate == "reference" else "servers")
    hard = random.Random(f"row/{row // 2}").random() * 0.5
    episodes, discarded = [], []
    for index in range(tries):
        attempt = 0
        while rng.random() < 0.05 and attempt < 2:
            discarded.append(_episode(rng, group_id, index, attempt, 0.0, lost=True))
            attempt += 1
        lost = attempt == 2 or rng.random() < 0.02
        episodes.append(_episode(rng, group_id, index, attempt, CHANCE.get(candidate, 0.5) - hard, lost))
    if by == "servers":  # an endpoint returns only text, so it has no training rows
        episodes = [each.model_copy(update={"rows": [_row(each)]}) for each in episodes]
    return GroupRecord(
        group_id=group_id,
        purpose=Purpose.EVALUATION,
        row=row,
        epoch=0,
        step=0,
        candidate=candidate,
        sampled_by=by,
        model="frontier" if by == "endpoint" else None,
        episodes=episodes,
        discarded=discarded,
    )


def _episode(
    rng: random.Random, group_id: str, index: int, attempt: int, chance: float, lost: bool
) -> EpisodeRecord:
    turns = rng.randint(1, MAX_TURNS)
    outcome = rng.choices([Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR], [8, 2, 0.5])[0]
    outcome = Outcome.INFRA_ERROR if lost else outcome
    reward = rng.choice([1.0, 0.75]) if rng.random() < chance + 0.2 else rng.choice([0.0, 0.5])
    score = 1.0 if rng.random() < chance else 0.0
    begun = MIDNIGHT - 30 + rng.random() * 60
    return EpisodeRecord(
        episode_id=f"{group_id}-{index}-{attempt}",
        group_id=group_id,
        index=index,
        attempt=attempt,
        outcome=outcome,
        error=None if outcome is Outcome.COMPLETED else f"it was {outcome.value}",
        reward=None if lost else reward,
        score=None if lost else score,
        metrics={} if lost else {"field acc": rng.random(), "format": float(rng.random() < 0.9)},
        messages=_messages(rng, turns),
        turns=[_turn(rng, number, cut=rng.random() < 0.05) for number in range(turns)],
        rows=[],
        sandbox_seconds=0.0 if lost else round(rng.random() * 3, 3),
        started_at=begun,
        finished_at=begun + 1 + rng.random() * 5,
    )


def _turn(rng: random.Random, index: int, cut: bool) -> Turn:
    prompt = 100 + 50 * index + rng.randint(0, 9)
    return Turn(
        index=index,
        prompt_tokens=prompt,
        cached_tokens=rng.choice([0, prompt // 2]),
        sampled_tokens=rng.randint(5, 40),
        finish_reason="length" if cut else "stop",
        malformed_tool_calls=int(rng.random() < 0.05),
        policy_version=PolicyVersion(incarnation=0, step=0),
    )


def _row(episode: EpisodeRecord) -> TrainingRow:
    """The tokens of all turns. The model repeats itself, and many probabilities are 1."""
    rng = random.Random(episode.episode_id)
    tokens, mask, turns = list[int](), list[int](), list[TurnSpan]()
    for turn in episode.turns:
        given = rng.randint(1, 9)
        start, end = len(tokens) + given, len(tokens) + given + turn.sampled_tokens
        tokens += [*rng.choices(range(100), k=given), *rng.choices((7, 8), k=turn.sampled_tokens)]
        mask += [0] * given + [1] * turn.sampled_tokens
        turns.append(TurnSpan(start=start, end=end, turn=turn.index))
    logprobs = [rng.choice((0.0, -rng.random())) if sampled else 0.0 for sampled in mask]
    version = PolicyVersion(incarnation=0, step=0)
    versions = [VersionSpan(start=span.start, end=span.end, version=version) for span in turns]
    return TrainingRow(tokens=tokens, mask=mask, logprobs=logprobs, versions=versions, turns=turns)


def _messages(rng: random.Random, turns: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"role": "system", "content": "You look things up."},
        {"role": "user", "content": "What is it made of?"},
    ]
    for turn in range(turns - 1):
        tool = rng.choice(["look_up", "calc/1"])
        call = {"id": f"call-{turn}-0", "type": "function"}
        call["function"] = {"name": tool, "arguments": '{"key": "it"}'}  # type: ignore[assignment]
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result = rng.choice(["gold", "error: no such key"])
        found.append({"role": "tool", "tool_call_id": f"call-{turn}-0", "content": result})
    return [*found, {"role": "assistant", "content": rng.choice(["It is gold.", ""])}]


def place(candidate: str, row: int) -> TryPlace:
    """Two rows share a document, and there are three tasks."""
    return TryPlace(candidate, row, task=("refund", "order", "billing")[row % 3], cluster=f"d{row // 2}")


def measured(groups: Sequence[GroupRecord]) -> list[Try]:
    """The tries of some groups."""
    rules = Rules(THRESHOLD, MAX_TURNS)
    return [t for g in groups for t in tries_of(g, place(g.candidate or "", g.row), rules)]


@cache
def groups(candidate: str, rows: int = ROWS) -> tuple[GroupRecord, ...]:
    """All groups of one candidate."""
    return tuple(group(candidate, row) for row in range(rows))


@cache
def tries() -> Mapping[str, list[Try]]:
    """The tries by candidate; the failed one has none."""
    return {name: measured(groups(name)) for name in CHANCE} | {"gone": []}


def days(candidates: Sequence[str] = tuple(CHANCE)) -> Days:
    """The usage in the ledger, by day."""
    found: Days = {}
    for name in candidates:
        for one in groups(name):
            found = fold(events.of_group(one), found)
    return found


@cache
def compared() -> Comparison:
    """The comparison of all candidates."""
    gate = GateSpec("tuned", minimum=0.3, must_beat="base", no_worse=[Bound("completion", 0.2)])
    return compare_all(tries(), KS, "base", gate, priced(BOOK))


@cache
def finished() -> Finished:
    """The job at its end."""
    job = config()
    standings = [
        CandidateTries(
            name,
            "Failed" if name == "gone" else "Complete",
            tries()[name],
            "CandidateMissing" if name == "gone" else None,
            job.unresolved.get(name),
        )
        for name in job.spec.candidate_names
    ]
    return Finished(job, standings, ROWS, days(), BOOK)  # type: ignore[arg-type]
