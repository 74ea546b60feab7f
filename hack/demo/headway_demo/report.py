"""Writes the demo's final report from the artifacts alone: success, curve, two trajectories, the bill."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway_demo import phases
from headway_demo.objects import read_group

JOB_STEP = "the job, from apply to Complete"
"""The demo's step that the report splits into phases."""
BARS = "▁▂▃▄▅▆▇█"
Group = dict[str, Any]
Episode = dict[str, Any]


def validations(run: Path) -> dict[int, list[Group]]:
    """Validated step -> its groups, in the order of the held-out rows. A row without an episode has no
    group."""
    steps = sorted((run / "trajectories" / "validation").iterdir())
    return {int(step.name): [read_group(p) for p in sorted(step.glob("*.json.gz"))] for step in steps}


def success(groups: Sequence[Group], threshold: float) -> float:
    """Share of held-out episodes whose external score reaches `threshold`, without InfraErrors."""
    scores = [e["score"] for g in groups for e in g["episodes"] if e["outcome"] != "InfraError"]
    return sum(float(score) >= threshold for score in scores) / len(scores)


def sparkline(values: Sequence[float]) -> str:
    """Values from 0 to 1 as one line of bars."""
    return "".join(BARS[min(int(v * len(BARS)), len(BARS) - 1)] for v in values)


def training_rewards(run: Path) -> list[float]:
    """Mean reward of the groups of each step, without steps that have no scored episode."""
    folder = run / "trajectories" / "train"
    rewards = []
    for report in sorted((run / "steps").glob("*.json")):
        groups = [read_group(folder / f"{name}.json.gz") for name in json.loads(report.read_text())["groups"]]
        found = [e["reward"] for g in groups for e in g["episodes"] if e["outcome"] != "InfraError"]
        if found:
            rewards.append(sum(found) / len(found))
    return rewards


def draw(curve: Mapping[int, float], rewards: Sequence[float], path: Path) -> None:
    """Draw held-out success and training reward over the steps, as a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=150)
    axes.plot(range(1, len(rewards) + 1), rewards, color="tab:gray", label="training reward (batch mean)")
    axes.plot(list(curve), list(curve.values()), marker="o", color="tab:blue", label="held-out success")
    axes.set(xlabel="optimizer step", ylabel="share", ylim=(0, 1.02), title="sop-quickstart")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def conversation(episode: Episode) -> str:
    """An episode as text for a person, without the system prompt."""
    lines = [_message(m) for m in episode["messages"] if m["role"] != "system"]
    end = f"reward {episode['reward']:.2f}, external score {episode['score']:.0f}"
    return "\n".join([*lines, f"  outcome {episode['outcome']}, {end}"])


def _message(message: Mapping[str, Any]) -> str:
    calls = "; ".join(
        f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or []
    )
    text = " ".join(part for part in (message.get("content") or "", f"-> {calls}" if calls else "") if part)
    return f"  {message['role']:>9}: {' '.join(text.split())}"


def changed(before: Sequence[Group], after: Sequence[Group]) -> tuple[Episode, Episode] | None:
    """The episodes before and after training of the first held-out row whose score became better.

    Only rows with a scored episode both times count. If no score became better, it takes the first such row.
    The result is None if there is no such row.
    """
    then, now = _answers(before), _answers(after)
    pairs = [(then[row], now[row]) for row in sorted(then.keys() & now.keys())]
    gains = (pair for pair in pairs if _score(pair[0]) < _score(pair[1]))
    return next(gains, next(iter(pairs), None))


def _answers(groups: Sequence[Group]) -> dict[int, Episode]:
    """Row -> its first scored episode."""
    found = {g["row"]: [e for e in g["episodes"] if e["outcome"] != "InfraError"] for g in groups}
    return {row: episodes[0] for row, episodes in found.items() if episodes}


def _score(episode: Episode) -> float:
    return float(episode["score"] or 0.0)


def comparison(evaluated: Mapping[int, Sequence[Group]]) -> list[str]:
    """One held-out row before and after training, as lines of the report."""
    first, last = min(evaluated), max(evaluated)
    pair = changed(evaluated[first], evaluated[last])
    if pair is None:
        return [f"No held-out case was answered both at step {first} and at step {last}, so none is compared"]
    return [
        f"One held-out case before (step {first})",
        conversation(pair[0]),
        "",
        f"The same case after (step {last})",
        conversation(pair[1]),
    ]


def wall_clock(
    job: Mapping[str, Any],
    run: Path,
    evaluated: Mapping[int, Sequence[Group]],
    timings: Mapping[str, float],
    tracked: phases.Tracked,
) -> list[str]:
    """How the time from the command to this report was spent, as lines of the report."""
    trained = [read_group(path) for path in (run / "trajectories" / "train").iterdir()]
    sampled = run / "trajectories" / "preflight"
    baseline = [read_group(path) for path in sampled.rglob("*.json.gz")]
    groups = [group for groups in evaluated.values() for group in groups] + trained
    found = phases.split(
        timings,
        JOB_STEP,
        phases.started_after(job, groups),
        phases.step_metrics(run),
        tracked.get(phases.WEIGHT_SYNC, {}),
        tracked.get(phases.EVALUATION) or phases.durations(evaluated),
        phases.preflight_took(job, baseline),
    )
    return [
        "Where the time went",
        *(f"  {seconds:7.1f} s  {what}" for seconds, what in found.lines()),
    ]


def text(
    job: Mapping[str, Any],
    run: Path,
    timings: Mapping[str, float],
    threshold: float,
    bill: str,
    tracked: phases.Tracked,
) -> str:
    """The whole report. `tracked` has the metrics that only MLflow has; it may be empty."""
    evaluated = validations(run)
    curve = {step: success(groups, threshold) for step, groups in evaluated.items()}
    rewards = training_rewards(run)
    first, last = min(evaluated), max(evaluated)
    draw(curve, rewards, run / "curve.png")
    artifacts, checkpoints = job["status"]["artifacts"], job["status"]["checkpoints"]
    return "\n".join(
        [
            f"Held-out exact-match success ({len(evaluated[last])} cases, greedy)",
            f"  before {curve[first]:.1%}   after {curve[last]:.1%}   ({curve[last] - curve[first]:+.1%})",
            "",
            "Learning curve",
            *(f"  step {step:>3}  {value:6.1%}  {'█' * round(40 * value)}" for step, value in curve.items()),
            f"  training reward by step  {sparkline(rewards)}",
            "",
            *comparison(evaluated),
            "",
            "The bill",
            bill,
            "",
            "Where things are",
            f"  checkpoint    {checkpoints['latest']['uri']}",
            f"  adapter       {checkpoints['adapter']['uri']}",
            f"  trajectories  {artifacts['trajectories']}",
            f"  a copy        {run}",
            f"  curve         {run / 'curve.png'}",
            "",
            *wall_clock(job, run, evaluated, timings, tracked),
        ]
    )
