"""Makes the pages about signals from their definitions.

`python -m headway_analysis.signals.page [--check]` writes them, or reports which differ:

docs/signals.md                         every signal: number, threshold and its reason, what to change
docs/runbooks/Headway<Signal>.md        one page for each alert
charts/headway/files/signals.yaml       names, severities and texts of the chart's alerts
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from headway_analysis.signals.catalogue import SIGNALS
from headway_analysis.signals.definition import Signal
from headway_analysis.signals.judges import learning
from headway_api.signals import MAX_SHOWN_SIGNALS

MADE: Final = "Made from the code by `make signals`; do not edit."
WIDTH: Final = 150
ALERT_AFTER_MINUTES: Final = 5
"""Minutes that a signal must be raised before its alert in the chart fires, by default."""

TERMS: Final = {
    "surely": "*Surely* means that the whole 95 % interval lies on that side.",
    "near its best": "The reward is *near its best* if its median over "
    f"{learning.WINDOW} steps is at most {learning.SOLVED_WITHIN:.0%} of its range below its highest value.",
}
"""Term in the text of a threshold -> its definition."""
LIST: Final = "\n".join(f"- {meaning}" for meaning in TERMS.values())
INTRODUCTION: Final = f"""\
# Signs that training goes wrong

{MADE}

The coordinator judges every step by the signals below. Each is a pure function of the metrics of the steps
so far, so a restart gives the same states. A metric that is missing or not finite is unknown, and raises
nothing.

| state | when |
|---|---|
| `Unknown` | too few steps give a result |
| `Clear` | the number is on the right side of its threshold |
| `Suspect` | the number is on the bad side of its threshold, but not for long enough yet |
| `Raised` | several readings were bad without a clear one between, or one was surely far beyond it |

A raised signal is clear again after several clear readings.

`status.signals` has the worst {MAX_SHOWN_SIGNALS} of the {len(SIGNALS)}. Raised ones come first, then
suspect, clear and unknown ones. Within a state the order is that of the table below. So only a more severe
raised signal can displace a raised one. If more than {MAX_SHOWN_SIGNALS} are raised, the least severe ones
have neither a place there nor an event. No alert is lost: alerts use the coordinator's metrics too, which
have every signal.
The condition `Healthy` names all that are raised; its reason is the most severe.

Each signal that becomes suspect, raised or clear again is an [event](operations.md#events). A suspect one is
reported at most once in each tenth of the job's steps, because it may come and go. MLflow has
`signal/state/<name>` (0 clear, 1 suspect, 2 raised) at each step or validation at which the coordinator
judges the signal, the last one included. In Prometheus the coordinator shows `headway_signal_state`,
`headway_signal_value` and `headway_signal_threshold` of every signal. The operator shows
`headway_job_signal` of those in the status, which outlives the pods. Each signal has an alert
`Headway<name>`.

`make test-signals` measures the signals on recorded runs: [its last result](../bench/results/signals.md). It
shows [how far clean and provoked runs are from each threshold](../bench/results/signals.md#thresholds).
A name in `code` is a metric of [operations.md](operations.md#metrics). An interval has 95 % confidence,
unless a signal says otherwise.

{LIST}
"""


def page() -> str:
    """The text of docs/signals.md."""
    rows = [
        f"| [{signal.name}](#{signal.name.lower()}) | {signal.meaning} | {signal.advice} |"
        for signal in SIGNALS
    ]
    table = "\n".join(["| signal | what it says | the first thing to change |", "|---|---|---|", *rows])
    return "\n".join(
        [INTRODUCTION, "## All of them, the most severe first", "", table, "", *map(section, SIGNALS)]
    )


def section(signal: Signal) -> str:
    """The section of docs/signals.md about one signal."""
    lines = [
        f"### {signal.name}",
        "",
        signal.meaning,
        "",
        f"- **Number:** {signal.number}",
        f"- **Threshold:** {signal.threshold}",
        f"- **Rationale:** {signal.reason}",
        f"- **Source:** {signal.source}",
        f"- **Raised** after {times(signal, signal.raise_after, 'bad', 'clear')}. **Clear** after "
        f"{times(signal, signal.clear_after, 'clear', 'bad')}. Severity: {signal.severity}.",
        f"- **First:** {signal.advice}",
        f"- **It helped if** {signal.confirmed_by}",
        "",
    ]
    return "\n".join(lines)


def times(signal: Signal, count: int, level: str, other: str) -> str:
    """In words: `count` readings of `level` with none of `other` in between. The clock decides whether these
    are steps or validations."""
    plural = "" if count == 1 else "s"
    between = "" if count == 1 else f" with no {other} one in between"
    steps = f"{count} {level} step{plural}"
    if signal.clock == "step":
        return f"{steps}{between}"
    validations = f"{count} {level} validation{plural}"
    if signal.clock == "either":
        validations += f" ({steps}, if nothing validates)"
    return f"{validations}{between}"


def runbook(signal: Signal) -> str:
    """The page that the alert links to."""
    looks = [f"{number}. {look}" for number, look in enumerate(signal.look_at, 1)]
    terms = [meaning for term, meaning in TERMS.items() if term in f"{signal.meaning} {signal.threshold}"]
    lines = [
        f"# Headway{signal.name}",
        "",
        f"<!-- {MADE} -->",
        "",
        "## What it means",
        "",
        signal.meaning,
        "",
        f"- **Number:** {signal.number}",
        f"- **Threshold:** {' '.join([signal.threshold, *terms])}",
        "",
        f"The signal is raised after {times(signal, signal.raise_after, 'bad', 'clear')}. The alert fires if "
        f"it is still raised {ALERT_AFTER_MINUTES} minutes later (`prometheusRule.for.signals`).",
        "",
        "## What to look at",
        "",
        *looks,
        "",
        "## What to do",
        "",
        f"{signal.advice}",
        f"It helped if {signal.confirmed_by}",
        f"[Signals](../signals.md#{signal.name.lower()}) has the reason for the threshold.",
        "",
    ]
    return "\n".join(lines)


def alerts() -> str:
    """The text of charts/headway/files/signals.yaml."""
    found = [
        {
            "name": signal.name.value,
            "severity": signal.severity,
            "summary": signal.meaning,
            "advice": signal.advice,
        }
        for signal in SIGNALS
    ]
    return f"# {MADE}\n" + yaml.safe_dump(found, sort_keys=False, width=WIDTH)


def files() -> Iterator[tuple[Path, str]]:
    """Path from the repository's root and text of every generated file."""
    yield Path("docs/signals.md"), page()
    for signal in SIGNALS:
        yield Path(f"docs/runbooks/Headway{signal.name}.md"), runbook(signal)
    yield Path("charts/headway/files/signals.yaml"), alerts()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which files differ")
    check = parser.parse_args().check
    stale = [path for path, text in files() if not path.exists() or path.read_text() != text]
    if check and stale:
        sys.exit(f"differ from the code: {', '.join(map(str, stale))}; run make signals")
    for path, text in files():
        if path in stale:
            path.write_text(text)


if __name__ == "__main__":
    main()
