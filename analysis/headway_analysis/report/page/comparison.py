"""The page of several training runs: their curves on the same axes, and how their specs differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from headway_analysis.report.page import drawing, training
from headway_analysis.report.page.curves import Chart, Line, line, validated
from headway_analysis.report.page.html import Page, Picture, Table, rendered, short
from headway_analysis.report.page.model import TrainingRun

MAX_RUNS: Final = 8
"""The most runs of a page: a reader cannot distinguish more colours."""
METRICS: Final = (
    ("Training reward", "reward", "rollout/reward/mean"),
    ("External score of training episodes", "score", "rollout/external_score/mean"),
    ("Entropy", "nats", "training/entropy"),
    ("Mismatch of servers and learner", "nats", "training/mismatch_kl"),
    ("Tokens of an episode", "tokens", "rollout/tokens/episode_mean"),
    ("Tool calls of an episode", "calls", "rollout/tool_calls/mean"),
    ("Gradient norm", "norm", "training/grad_norm"),
    ("Seconds of a step", "seconds", "timing_s/step"),
)


def named_runs(runs: Sequence[TrainingRun]) -> dict[str, TrainingRun]:
    """The runs by the name of their job. If several runs have the same name, the first characters of the uid
    follow it."""
    return dict(zip(_names(runs), runs, strict=True))


def page(runs: Sequence[TrainingRun]) -> str:
    """The page as HTML, for two to `MAX_RUNS` runs."""
    named = named_runs(runs)
    return rendered(
        Page(
            title=" and ".join(named) if len(named) == 2 else f"{len(named)} runs",
            kind="Comparison of RLTrainingJobs",
            state="on the same axes",
            facts=[],
            notes=[f"{name} has no job.json, so its spec is not compared." for name in _without_spec(named)],
            pictures=[
                Picture.of(chart, drawing.svg(chart, f"p{number}"))
                for number, chart in enumerate(charts(named))
            ],
            tables=[outcomes(named), differing(named)],
        )
    )


def _names(runs: Sequence[TrainingRun]) -> list[str]:
    plain = [run.name for run in runs]
    return [
        name if plain.count(name) == 1 else f"{name} {run.uid[:8]}"
        for name, run in zip(plain, runs, strict=True)
    ]


def _without_spec(named: Mapping[str, TrainingRun]) -> Iterator[str]:
    return (name for name, run in named.items() if run.spec is None)


def charts(named: Mapping[str, TrainingRun]) -> Iterator[Chart]:
    """The curves: a chart for each metric that any run has."""
    yield from _drawn("Held-out external score", "score", named, _scores)
    yield from _drawn("Held-out reward", "reward", named, _rewards)
    for title, unit, metric in METRICS:

        def of(run: TrainingRun, name: str, metric: str = metric) -> Line:
            return line(run.by_step, metric, name)

        yield from _drawn(title, unit, named, of)


def _scores(run: TrainingRun, name: str) -> Line:
    return validated(run.validations, name, "score")


def _rewards(run: TrainingRun, name: str) -> Line:
    return validated(run.validations, name, "reward")


def _drawn(
    title: str, unit: str, named: Mapping[str, TrainingRun], of: Callable[[TrainingRun, str], Line]
) -> Iterator[Chart]:
    """The curves of the runs that have the metric; nothing if no run has it."""
    made = (of(run, name) for name, run in named.items())
    if lines := tuple(each for each in made if each.points):
        yield Chart(title, unit, lines)


def outcomes(named: Mapping[str, TrainingRun]) -> Table:
    """A table of each run's results."""
    rows = []
    for name, run in named.items():
        first, last = (run.validations[0], run.validations[-1]) if run.validations else (None, None)
        usage = (run.report or {}).get("usage", {})
        rows.append(
            (
                name,
                str(max((report.step for report in run.steps), default=0)),
                (run.report or {}).get("finished") or "not finished",
                "" if first is None else short(first.external_score),
                "" if last is None else short(last.external_score),
                str(usage.get("cost", "")),
                str(usage.get("totalTokens", "")),
            )
        )
    columns = ("run", "steps", "ended", "first held-out score", "last held-out score", "USD", "tokens")
    return Table("Outcome", columns, rows)


def differing(named: Mapping[str, TrainingRun]) -> Table:
    """A table of the spec's fields that are not the same in all runs."""
    flat = {
        name: dict(training.flat(run.spec.as_object())) for name, run in named.items() if run.spec is not None
    }
    fields = list(dict.fromkeys(field for of_run in flat.values() for field in of_run))
    rows = [
        (field, *(of_run.get(field, "not set") for of_run in flat.values()))
        for field in fields
        if len({of_run.get(field) for of_run in flat.values()}) > 1
    ]
    note = "" if rows else "No field differs."
    return Table("Difference of the specs", ("field", *flat), rows, note)
