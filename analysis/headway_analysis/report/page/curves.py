"""The data of the page's charts: which metrics of a run are drawn by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from headway_analysis.statistics.estimates import of_rows
from headway_api.records import ValidationRecord

Metrics = Mapping[str, float]
Points = tuple[tuple[float, float], ...]
"""(step, value), in the order of steps."""

MAX_POINTS: Final = 400
"""The most points of a line: a screen cannot show more."""
MAX_LINES: Final = 8
"""The most lines of a chart: a reader cannot distinguish more colours."""


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    points: Points
    band: tuple[tuple[float, float, float], ...] = ()
    """(step, low, high): the 95 % interval at a step."""
    dots: bool = False
    """Whether each point gets a marker, for lines of few points."""


@dataclass(frozen=True)
class Chart:
    """One picture."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    about: str = ""
    """A note about the chart for the reader."""


@dataclass(frozen=True)
class Panel:
    """Metrics that share a chart. A name that ends with `/` stands for all metrics that begin with it."""

    title: str
    unit: str
    names: tuple[tuple[str, str], ...]
    """(metric, name of its line). For a prefix, the line's name is the rest of the metric's name."""
    about: str = ""


PANELS: Final = (
    Panel(
        "Reward by field",
        "reward",
        (("rollout/reward_metrics/", ""),),
        "Mean of each number that the reward returns beside itself.",
    ),
    Panel(
        "Reward by task",
        "reward",
        (("rollout/task_reward/", ""),),
        "Mean training reward of the rows of each task.",
    ),
    Panel(
        "Tokens of an episode",
        "tokens",
        (("rollout/tokens/episode_mean", "mean"), ("rollout/tokens/episode_max", "longest")),
        "Tokens that the model sampled in one episode.",
    ),
    Panel(
        "Turns and tool calls of an episode",
        "an episode",
        (("rollout/turns/mean", "turns"), ("rollout/tool_calls/mean", "tool calls")),
    ),
    Panel(
        "Tool calls that went wrong",
        "share",
        (("rollout/tool_calls/failed_share", "failed"), ("rollout/tool_calls/malformed_share", "malformed")),
    ),
    Panel(
        "Episodes cut off",
        "share",
        (
            ("episodes/turn_limit_rate", "by turns"),
            ("episodes/max_tokens_rate", "by tokens of a turn"),
            ("episodes/episode_token_limit_rate", "by tokens of the episode"),
            ("episodes/context_limit_rate", "by context"),
            ("episodes/time_limit_rate", "by time"),
        ),
    ),
    Panel(
        "Groups",
        "groups",
        (("training/num_groups", "in the batch"), ("training/num_trained_groups", "with an advantage")),
        "A group whose episodes all get the same reward has no advantage, and teaches nothing.",
    ),
    Panel("Entropy", "nats", (("training/entropy", "policy"),), "How uncertain the policy is, per token."),
    Panel(
        "Mismatch of servers and learner",
        "nats",
        (("training/mismatch_kl", "KL"), ("training/logprob_gap_mean", "mean gap")),
        "How much the probabilities of the same tokens differ.",
    ),
    Panel(
        "Tokens clipped or masked",
        "share",
        (("training/clip_fraction", "clipped"), ("training/masked_fraction", "masked")),
    ),
    Panel("Gradient norm", "norm", (("training/grad_norm", "before clipping"),)),
    Panel("Loss", "loss", (("training/loss", "policy"),)),
    Panel(
        "Staleness",
        "steps",
        (("training/lag_mean", "mean"), ("training/lag_max", "largest")),
        "How many steps older than the learner the sampling policy was.",
    ),
    Panel(
        "Seconds of a step",
        "seconds",
        (
            ("timing_s/step", "whole step"),
            ("timing_s/wait_for_batch", "waiting for episodes"),
            ("timing_s/policy_update", "policy update"),
            ("timing_s/publish_weights", "publishing weights"),
            ("timing_s/save_checkpoint", "checkpoint"),
        ),
    ),
)
"""The panels that follow reward, external score, tokens and cost, in the order of the page."""


def interval(tries: Iterable[Sequence[float]]) -> tuple[float, float] | None:
    """The 95 % interval of a mean over rows, from `of_rows`; None if there is no interval."""
    found = of_rows(tries)
    return None if found is None or found.low is None or found.high is None else (found.low, found.high)


def training(metrics: Mapping[int, Metrics], validations: Sequence[ValidationRecord]) -> list[Chart]:
    """The charts of a training run. Charts whose metrics the run lacks are left out.

    Args:
        metrics: step -> the learner's metrics and those of the step's batch.
    """
    charts = [
        Chart(
            "Reward",
            "reward",
            _filled(
                line(metrics, "rollout/reward/mean", "training episodes"),
                validated(validations, "held-out rows", "reward"),
            ),
            "What the model is trained on. Bars are 95 % intervals over rows.",
        ),
        Chart(
            "External score",
            "score",
            _filled(
                line(metrics, "rollout/external_score/mean", "training episodes"),
                validated(validations, "held-out rows", "score"),
            ),
            "The strict judgement that the model never sees. If it differs from the reward, read episodes.",
        ),
        Chart(
            "Tokens trained",
            "tokens",
            _filled(summed(metrics, "training/total_tokens", "from the beginning")),
            "Tokens that went through forward and backward.",
        ),
        Chart(
            "Cost",
            "US dollars",
            _filled(line(metrics, "usage/cost_at_step_usd", "from the beginning")),
            "Cost of the whole job when each step was taken, by the price book then.",
        ),
        *(_panel(panel, metrics) for panel in PANELS),
    ]
    return [chart for chart in charts if chart.lines]


def _panel(panel: Panel, metrics: Mapping[int, Metrics]) -> Chart:
    found: list[Line] = []
    for name, called in panel.names:
        if not name.endswith("/"):
            found.append(line(metrics, name, called))
            continue
        below = sorted({each for of_step in metrics.values() for each in of_step if each.startswith(name)})
        found += [line(metrics, each, each.removeprefix(name)) for each in below]
    return Chart(panel.title, panel.unit, _filled(*found)[:MAX_LINES], panel.about)


def line(metrics: Mapping[int, Metrics], name: str, called: str) -> Line:
    """A line with a metric by step. `called`: the line's name."""
    return Line(called, thinned([(step, of[name]) for step, of in sorted(metrics.items()) if name in of]))


def summed(metrics: Mapping[int, Metrics], name: str, called: str) -> Line:
    """A line with a metric's sum up to each step; no points if the whole sum is 0."""
    total, found = 0.0, []
    for step, of_step in sorted(metrics.items()):
        total += of_step.get(name, 0.0)
        found.append((step, total))
    return Line(called, thinned(found) if total else ())


def validated(
    validations: Sequence[ValidationRecord], called: str, which: Literal["reward", "score"]
) -> Line:
    """A line with the mean reward or external score of held-out rows by step, with its intervals."""
    points, band = [], []
    for each in validations:
        tries = [row.rewards if which == "reward" else row.scores for row in each.rows.values()]
        points.append((float(each.step), each.reward if which == "reward" else each.external_score))
        if (found := interval(tries)) is not None:
            band.append((float(each.step), *found))
    return Line(called, tuple(points), tuple(band), dots=True)


def thinned(points: Sequence[tuple[float, float]], limit: int = MAX_POINTS) -> Points:
    """At most `limit` of the points: of each section the lowest and the highest, so that no spike is lost."""
    if len(points) <= limit:
        return tuple((float(step), value) for step, value in points)
    found: list[tuple[float, float]] = []
    edges = np.linspace(0, len(points), limit // 2 + 1).astype(int)
    for begin, end in pairwise(edges):
        section = points[begin:end]
        low, high = min(section, key=lambda at: at[1]), max(section, key=lambda at: at[1])
        found += sorted({low, high})
    return tuple((float(step), value) for step, value in found)


def _filled(*lines: Line) -> tuple[Line, ...]:
    return tuple(each for each in lines if each.points)
