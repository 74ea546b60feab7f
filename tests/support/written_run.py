"""Invented training runs, as they lie in the store, for tests of code that shows a run.

Metrics and episodes are functions of the step, so a test can say what a page must show. The product's own
code makes the records, their names in the store and the statistics over them.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import learner_rig
import made_up_baselines

from headway_analysis.billing.segments import fold, total
from headway_analysis.measures import metrics
from headway_analysis.preflight import report as preflight_report
from headway_analysis.preflight.definition import Finding
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.decisions import Decision
from headway_api.in_force import Directive, InForce
from headway_api.prices import DEFAULT
from headway_api.records import (
    BatchMetrics,
    BatchWait,
    BatchWaits,
    EpisodeRecord,
    EpisodeSpan,
    GroupRecord,
    Outcome,
    Purpose,
    StepReport,
    Turn,
    UsageEvent,
)
from headway_api.signals import SignalName
from headway_api.spec.trust import MeasureSpec
from headway_api.store import FileStore
from headway_coordinator.evaluation.summary import Summary
from headway_coordinator.ledger import events
from headway_coordinator.ledger.usage import usage
from headway_coordinator.preflight import keyed
from headway_coordinator.spool import Spool

Course = Literal["good", "collapsed"]
HOSTILE: Final = "<script>alert(1)</script> & $x_1$"
"""Text that a stranger's tool could answer. It is in every conversation."""


BEGUN: Final = 1_767_312_000.0
STEP_SECONDS: Final = 12.0
SPANS: Final = [
    EpisodeSpan(kind="sandbox", began=0, ended=1),
    EpisodeSpan(kind="agent", began=1, ended=7),
    EpisodeSpan(kind="turn", name="0", began=1, ended=3),
    EpisodeSpan(kind="tool", name="look", began=3, ended=4.5),
    EpisodeSpan(kind="turn", name="1", began=5, ended=7),
    EpisodeSpan(kind="judgement", began=7, ended=8),
]
"""What each episode waits for in its 8 seconds. The learner has the batch half a second later."""
LEARNER: Final = {"report": 0.5, "wait_for_batch": 9.0, "policy_update": 2.5}
"""Seconds of each part of the learner's step, in order. An episode is queued when the wait begins."""
FINDINGS: Final = (
    Finding("foothold", "Pass", "41 of 96 episodes earn more than 0."),
    Finding("reward-variance", "Warn", "5 of 24 groups differ.", advice="Raise algorithm.groupSize."),
    Finding("scorer-agrees", "Unknown", "No episode has both.", advice="Return an external score.", needs=32),
)
"""The findings of the preflight."""


@dataclass(frozen=True)
class Made:
    """A run that was written."""

    layout: Layout
    episodes: int

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.layout.root.removeprefix("file://"))


def chance(course: Course, step: int, steps: int) -> float:
    """The chance that an episode of a step earns the full reward."""
    done = step / max(1, steps)
    risen = 0.35 + 0.6 * (1 - math.exp(-3 * done))
    return risen if course == "good" or done < 0.5 else 0.0


def write(
    root: Path,
    course: Course = "good",
    *,
    steps: int = 20,
    groups: int = 2,
    size: int = 4,
    every: int = 5,
    name: str = "refunds",
    finished: bool = True,
    remedy_at: int | None = None,
    **spec: Any,
) -> Made:
    """Write a run below `root`: `steps` steps of `groups` groups of `size` episodes.

    A validation comes after each `every` steps. The step `remedy_at` is a remedy, and has no groups.
    """
    layout = Layout(f"file://{root}", "team", name, "0f0e0d0c-1111-4222-8333-444455556666")
    store, rng = FileStore(), random.Random(f"{course}/{steps}")
    spool = Spool(store, layout)
    job = config(layout, **spec)
    spool.describe(job)
    spool.keep(learner_rig.report(0).model_copy(update={"ended_at": BEGUN}))
    checked = preflight_report.document(made_up_baselines.of_values([[(1.0, 1.0), (0.0, 0.0)]]), FINDINGS)
    kept = keyed.Kept(
        key="k", job=name, episodes=96, wanted=96, findings=list(FINDINGS), document=dict(checked)
    )
    keyed.keep(store, layout, kept, preflight_report.markdown(checked))
    billed: list[UsageEvent] = []
    for step in range(steps + 1):
        odds = chance(course, step, steps)
        if step % every == 0:
            billed += _validated(spool, step, odds, rng)
        if step == remedy_at:
            _remedied(spool, step)
        elif step:
            billed += _stepped(spool, step, odds, groups, size, rng)
    if finished:
        store.put(layout.report, json.dumps(_report(name, billed)).encode())
    return Made(layout, (steps - (remedy_at is not None)) * groups * size)


def _report(name: str, billed: list[UsageEvent]) -> dict[str, Any]:
    """Make `report.json`, with the parts that a page shows."""
    days = fold(billed)
    used = usage(days, DEFAULT, datetime.fromtimestamp(BEGUN, UTC).date()).as_object()
    return {
        "job": name,
        "finished": "MaxSteps",
        "usage": {**used, "cost": "0.0123", "currency": "USD"},
        "usageByClass": {each.value: quantity for each, quantity in total(days).items()},
    }


def config(layout: Layout, **spec: Any) -> JobConfig:
    """Return the run's job."""
    fields = {
        "model": {"base": "hf://acme/tiny"},
        "data": {split: {"uri": f"s3://acme/{split}.jsonl"} for split in ("train", "validation")},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "output": {"uri": "s3://acme/runs"},
        **spec,
    }
    identity = {"name": layout.name, "namespace": layout.namespace, "uid": layout.uid}
    return JobConfig.model_validate({**identity, "spec": fields})


def _remedied(spool: Spool, step: int) -> None:
    """Make a step without groups, which lowers the learning rate."""
    directive = Directive(remedy="LowerLearningRate")
    in_force = InForce(number=1, learning_rate=1e-6)
    why = "RewardCollapsed is raised: the reward fell from 0.9 to 0.1."
    decision = Decision(
        number=1,
        step=step,
        directive=directive,
        in_force=in_force,
        signal=SignalName.REWARD_COLLAPSED,
        why=why,
    )
    spool.decided.write(decision)
    fields = {"directive": directive, "in_force": in_force, "ended_at": BEGUN + STEP_SECONDS * step}
    spool.keep(learner_rig.report(step).model_copy(update=fields))


def _stepped(
    spool: Spool, step: int, odds: float, groups: int, size: int, rng: random.Random
) -> list[UsageEvent]:
    """Write a step that trains; return its usage."""
    made = [_group(f"t0-{step * groups + n:06d}", step - 1, odds, size, rng, step) for n in range(groups)]
    for each in made:
        spool.put(each)
    ids = [each.group_id for each in made]
    own = {
        "training/entropy": 0.4 * odds + 0.01,
        "training/mismatch_kl": 1e-4,
        "training/grad_norm": 0.3,
        "training/num_groups": float(groups),
        "training/num_trained_groups": float(
            sum(len({e.reward for e in each.episodes}) > 1 for each in made)
        ),
        "training/total_tokens": 1000.0,
        "timing_s/step": STEP_SECONDS,
        **{f"timing_s/{name}": seconds for name, seconds in LEARNER.items()},
    }
    bare = learner_rig.report(step)
    report = bare.model_copy(
        update={
            "groups": ids,
            "train_tokens": dict.fromkeys(ids, 500),
            "metrics": own,
            "ended_at": (ended := BEGUN + STEP_SECONDS * step),
            "waits": BatchWaits(
                sent_at=ended - 2.7, waits=[BatchWait(kind="storing", began=ended - 3, ended=ended - 2.8)]
            ),
        }
    )
    spool.keep(StepReport.model_validate(report.model_dump()))
    found = metrics.batch(made, step, trained=frozenset(ids), max_turns=4)
    cost = {"usage/cost_at_step_usd": 0.0006 * step}
    spool.keep_metrics(BatchMetrics(step=step, groups=ids, metrics=found | cost))
    return [*(event for each in made for event in events.of_group(each)), *events.of_step(report, BEGUN)]


def _validated(spool: Spool, step: int, odds: float, rng: random.Random) -> list[UsageEvent]:
    """Write a validation; return its usage."""
    rows = [
        _group(f"v{step:06d}-{row:06d}", step, odds, 1, rng).model_copy(
            update={"purpose": Purpose.VALIDATION, "row": row}
        )
        for row in range(12)
    ]
    for each in rows:
        spool.put(each)
    spool.conclude(Summary.of(step, rows, MeasureSpec(), 4))
    return [event for each in rows for event in events.of_group(each)]


def _group(name: str, step: int, odds: float, size: int, rng: random.Random, trained: int = 0) -> GroupRecord:
    """Make a group. `trained` is the step that trains on it; its episodes end before that step."""
    rewards = [1.0 if rng.random() < odds else rng.choice([0.0, 0.25]) for _ in range(size)]
    made = learner_rig.group(name, rewards, step=step)
    return made.model_copy(
        update={
            "row": int(name[-6:]) % 50,
            "episodes": [_with_conversation(each, rng, trained) for each in made.episodes],
        }
    )


def _with_conversation(episode: EpisodeRecord, rng: random.Random, trained: int) -> EpisodeRecord:
    """Add a conversation, a score stricter than the reward, and now and then another outcome."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "here"}'}}
    messages = [
        {"role": "system", "content": "Answer in a tag."},
        {"role": "user", "content": f"What of {HOSTILE}?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": f"found {HOSTILE}"},
        {"role": "assistant", "content": "<answer>refund</answer>"},
    ]
    version = episode.rows[0].versions[0].version
    turns = [
        Turn(
            index=number,
            prompt_tokens=20,
            cached_tokens=0,
            sampled_tokens=6,
            finish_reason="stop",
            policy_version=version,
        )
        for number in range(2)
    ]
    reward = episode.reward or 0.0
    return episode.model_copy(
        update={
            "messages": messages,
            "turns": turns,
            "score": float(reward == 1.0 and rng.random() < 0.9),
            "metrics": {"well_formed": 1.0, "fields": reward},
            "outcome": Outcome.TRUNCATED if rng.random() < 0.05 else Outcome.COMPLETED,
            "queued_at": (queued := BEGUN + STEP_SECONDS * (trained - 1) + LEARNER["report"]),
            "started_at": (began := queued + 0.5),
            "finished_at": began + 8,
            "spans": SPANS,
        }
    )


WORDS: Final = ("ab", " c", "<d>", "\n", "é")


def decode(ids: Any) -> str:
    """Return a text for token ids, without a tokenizer."""
    return "".join(WORDS[each % len(WORDS)] for each in ids)
