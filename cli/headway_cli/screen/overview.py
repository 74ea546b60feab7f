"""Rows of the screen about a job's progress, scores, usage and cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from headway_api import names
from headway_api.document import Json
from headway_cli import pace, status_values
from headway_cli.pace import History
from headway_cli.screen.layout import Bar, Row
from headway_cli.status_values import UNKNOWN

GOES_ON: Final = ("Starting", "Preflight", "Training", "Evaluating", "Restarting")
"""States in which the time left is estimated."""
OVER: Final = ("Complete", "Failed")
"""States of a job that has ended."""
STYLES: Final = {
    "Complete": "bold green",
    "Failed": "bold red",
    "Stalled": "bold yellow",
    "Suspended": "bold yellow",
}
"""Styles of states; others have none."""
USD: Final = "usd"
"""Name of the limit in US dollars in `status.budget`. A limit of the namespace's grant has the prefix
`namespace.`."""


def is_evaluation(job: Json) -> bool:
    """Whether a job is an RLEvalJob."""
    return status_values.text(job.get("kind")) == names.EVAL_KIND


def state_of(job: Json) -> str:
    """The job's state in its status; `Pending` if the status has none."""
    return status_values.text(status_values.block(job, "status").get("state")) or "Pending"


def title(job: Json) -> Row:
    """The row with the job's kind, namespace and name."""
    metadata = status_values.block(job, "metadata")
    place = [status_values.text(metadata.get(key)) for key in ("namespace", "name")]
    return Row(
        "job", (f"{status_values.text(job.get('kind')) or 'job'} {'/'.join(filter(None, place))}",), "bold"
    )


def state(job: Json, now: datetime) -> Row:
    """The row with the job's state, its reason, and how long it has lasted."""
    status, word = status_values.block(job, "status"), state_of(job)
    reason = status_values.text(status.get("reason"))
    text = f"{word} ({reason})" if reason and reason not in (word, "Running") else word
    for_long = status_values.seconds_between(_since(status, reason), now)
    begun = status_values.seconds_between(status_values.moment(status.get("startTime")), now)
    pieces = [text if for_long is None else f"{text} for {status_values.duration(for_long)}"]
    if begun is not None and word not in OVER:
        pieces.append(f"begun {status_values.duration(begun)} ago")
    return Row("state", tuple(pieces), STYLES.get(word, ""))


def _since(status: Json, reason: str) -> datetime | None:
    """When a condition with the state's reason last changed; None if no condition has this reason."""
    moments = [
        found
        for each in status_values.items(status.get("conditions"))
        if reason
        and status_values.text(each.get("reason")) == reason
        and (found := status_values.moment(each.get("lastTransitionTime"))) is not None
    ]
    return max(moments, default=None)


def done(job: Json) -> Row:
    """The row with finished steps of a training job, or rows of an evaluation, with the total and a bar."""
    status = status_values.block(job, "status")
    progress = status_values.block(status, "progress")
    label, so_many = ("rows", "groups") if is_evaluation(job) else ("step", "step")
    maximum = _maximum(job)
    reached = status_values.count(progress.get(so_many))
    of = UNKNOWN if maximum is None else f"{maximum:,}"
    pieces = [f"{status_values.whole(reached) if reached is not None else 0} of {of}"]
    if (evaluated := status_values.count(progress.get("evaluating"))) is not None:
        pieces.append(f"validation of step {evaluated:,} runs")
    if finished := status_values.text(progress.get("finished")):
        pieces.append(f"no step follows ({finished})")
    bar = Bar((reached or 0) / maximum) if maximum else None
    return Row(label, tuple(pieces), bar=bar)


def _maximum(job: Json) -> int | None:
    progress = status_values.block(job, "status", "progress")
    return status_values.count(progress.get("ofGroups" if is_evaluation(job) else "maxSteps"))


def time_left(job: Json, now: datetime, history: History) -> Row | None:
    """The row with the estimated time left; None if the job has ended."""
    if state_of(job) in OVER:
        return None
    seconds = seconds_left(job, now, history)
    return Row("time left", (UNKNOWN if seconds is None else f"about {status_values.duration(seconds)}",))


def seconds_left(job: Json, now: datetime, history: History) -> float | None:
    """Estimated seconds until the job's last step.

    They are the share of steps left times the duration of the whole job in `status.estimate`. Without such an
    estimate, the observed rate of steps is used. Returns None if neither is known, if the job is held or
    stalled, or if no step is left.
    """
    progress = status_values.block(job, "status", "progress")
    maximum, reached = (
        _maximum(job),
        status_values.count(progress.get("groups" if is_evaluation(job) else "step")) or 0,
    )
    if (
        state_of(job) not in GOES_ON
        or status_values.text(progress.get("stalled"))
        or not maximum
        or reached >= maximum
    ):
        return None
    estimated = status_values.count(status_values.block(job, "status", "estimate").get("seconds"))
    if estimated is not None:
        return estimated * (maximum - reached) / maximum
    rate = history.done.rate(now)
    return (maximum - reached) / rate if rate else None


def reward(job: Json) -> Row:
    """The row with the mean reward of the last trained batch."""
    found = status_values.block(job, "status", "reward")
    pieces = [status_values.number_text(found.get("mean"))]
    if status_values.number(found.get("mean")) is not None:
        pieces[0] += " in the last batch"
    if status_values.number(found.get("valid")) is not None:
        pieces.append(f"{status_values.number_text(found['valid'])} in its groups with an advantage")
    return Row("reward", tuple(pieces))


def held_out(job: Json) -> Row:
    """The row with the external score of the last validation, the best one, and the one before training."""
    found = status_values.block(job, "status", "validation")
    pieces = [_scored(found)]
    best = status_values.block(found, "best")
    if status_values.number(best.get("externalScore")) is not None:
        pieces.append(f"best {_scored(best)}")
    if status_values.number(found.get("baselineExternalScore")) is not None:
        pieces.append(f"{status_values.number_text(found['baselineExternalScore'])} before training")
    return Row("held-out", tuple(pieces))


def _scored(found: Json) -> str:
    score = status_values.text(found.get("score")) or status_values.number_text(found.get("externalScore"))
    step = status_values.count(found.get("step"))
    return score if score == UNKNOWN or step is None else f"{score} at step {step:,}"


def tested(job: Json) -> Row | None:
    """The row with the result on the test split; None if there is no result yet."""
    found = status_values.block(job, "status", "test")
    score = status_values.text(status_values.block(found, "tuned").get("externalScore"))
    if not score:
        return None
    step, before = (
        status_values.count(found.get("step")),
        status_values.text(status_values.block(found, "base").get("externalScore")),
    )
    pieces = [score if step is None else f"{score} at step {step:,}"]
    pieces += [f"{before} before training"] if before else []
    if ahead := status_values.text(found.get("externalScoreDifference")):
        pieces.append(f"ahead by {ahead}")
    return Row("test split", tuple(pieces))


def tokens(job: Json, now: datetime, history: History) -> Row:
    """The row with the number of all tokens, and the recent rate per second."""
    in_all, rate = pace.tokens(job), history.tokens.rate(now)
    each_second = UNKNOWN if rate is None or state_of(job) in OVER else _rate(rate)
    pieces = [f"{UNKNOWN if in_all is None else f'{in_all:,}'} in all", f"{each_second} a second"]
    evaluation = status_values.count(status_values.block(job, "status", "usage").get("evaluationTokens"))
    if evaluation and not is_evaluation(job):
        pieces.append(f"{evaluation:,} of them for validation")
    return Row("tokens", tuple(pieces))


def _rate(a_second: float) -> str:
    return f"{a_second:,.0f}" if a_second >= 10 else f"{a_second:.2g}"


def cost(job: Json) -> Row:
    """The row with the cost so far, its limit, and the likely cost of the whole job."""
    status = status_values.block(job, "status")
    usage, estimate = status_values.block(status, "usage"), status_values.block(status, "estimate")
    spent, limits = status_values.number_text(usage.get("cost")), dict(_limits(status))
    if spent != UNKNOWN:
        spent = f"{spent} {status_values.text(usage.get('currency')) or 'USD'}"
    pieces = [f"{spent} of {limits[USD]} at most" if USD in limits else spent]
    if status_values.number(estimate.get("likely")) is not None:
        low, likely, high = (
            status_values.number_text(estimate.get(key)) for key in ("low", "likely", "high")
        )
        pieces.append(f"about {likely} for the whole job ({low} to {high})")
    if missing := status_values.words(usage.get("unpriced")):
        pieces.append(f"without {', '.join(missing)}, which have no price")
    return Row("cost", tuple(pieces))


def budget(job: Json) -> Row | None:
    """The row with the limits in tokens and those of the namespace's grant; None if there are none."""
    status = status_values.block(job, "status")
    spent = {
        status_values.text(each.get("name")): status_values.number_text(each.get("spent"))
        for each in status_values.items(status_values.block(status, "budget").get("limits"))
    }
    pieces = [f"{name} {spent[name]} of {limit}" for name, limit in _limits(status) if name != USD]
    return Row("budget", tuple(pieces)) if pieces else None


def _limits(status: Json) -> Iterator[tuple[str, str]]:
    for each in status_values.items(status_values.block(status, "budget").get("limits")):
        name, limit = status_values.text(each.get("name")), status_values.number_text(each.get("limit"))
        if name and limit != UNKNOWN:
            yield name, limit


def pods(job: Json) -> Row | None:
    """The row with ready and wanted pods by role, and restarts after failures; None without roles."""
    pieces = []
    for each in status_values.items(status_values.block(job, "status").get("roles")):
        text = f"{status_values.text(each.get('name')) or UNKNOWN} {_ready(each)}"
        restarts = status_values.count(each.get("restarts"))
        pieces.append(f"{text} after {restarts:,} restarts" if restarts else text)
    return Row("pods ready", tuple(pieces)) if pieces else None


def _ready(role: Json) -> str:
    return f"{status_values.count(role.get('ready')) or 0:,} of {status_values.whole(role.get('desired'))}"
