"""Draws pictures of the dashboards from the results of their queries. They are not screenshots of Grafana.

    python -m headway_dashboards.pictures FOLDER --record RECORD      # make dashboard-pictures
    python -m headway_dashboards.pictures FOLDER                      # make dashboard-pictures FROM=played

RECORD is a recording of jobs on a cluster, scraped by the Prometheus of tests/e2e
(`tests/support/record.py`). Without it, the program simulates a job and scrapes it, as the tests do
(`tests/support/monitored_job.py`). It draws each panel of the dashboards' files where Grafana would put it.
Folded sections stay folded.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

from headway_dashboards import drawing
from headway_dashboards.asking import Json, named, sent
from headway_dashboards.drawing import WIDTH_INCHES, Box, Curve, Span

FILES: Final = Path("charts/headway/files/dashboards")
STEPS: Final = 48
PACE: Final = 0.8
SCRAPE_SECONDS: Final = 2
"""Seconds between two scrapes of the simulated job. A scrape that takes longer leaves a gap in the curves."""
RATE_SECONDS: Final = 10.0
"""Seconds of a rate's window. Grafana would choose it for a data source that is scraped every 2.5 s."""
STEP_SECONDS: Final = 1.0
"""Minimum seconds between two points of a curve."""
MAX_POINTS: Final = 400
"""Maximum number of points of a curve."""
CAPTION: Final = "drawn from the dashboard's queries over {:.0f} seconds of {}, not a screenshot of Grafana"
UNIT_INCHES, DPI = 0.3, 88
MAX_BYTES: Final = 200_000
MAX_COLORS: Final = 96
"""Maximum number of colors of a picture. With fewer, lines of different colors look alike."""
PARTS: Final = {
    "fleet": [("fleet", None)],
    "job": [
        ("job-learning", ("Now", "Learning")),
        ("job-health", ("Health",)),
        ("job-speed-and-cost", ("Speed", "Cost")),
    ],
    "servers": [("servers", None)],
    "sandboxes": [("sandboxes", None)],
}
"""Board -> pairs of a picture's name and its sections (None for all sections)."""
ANY: Final = dict.fromkeys(("namespace", "kind", "job_name", "purpose", "server"), ".*")
"""Values of a board's variables for the choice "All"."""


class Asker:
    """Runs the queries of one board on a Prometheus of the tests."""

    def __init__(
        self, prometheus: Any, begun: float, ended: float, chosen: dict[str, str], of: str = "a job"
    ) -> None:
        self._prometheus = prometheus
        self._chosen = chosen
        self.begun, self.ended, self.of = begun, ended, of
        self.span = Span(ended - begun, max(STEP_SECONDS, (ended - begun) / MAX_POINTS))

    def curves(self, target: Json) -> list[Curve]:
        """The curves that a query returns, over the whole time span. An instant query is asked at its end."""
        step = self.span.step
        expr = sent(target["expr"], self._chosen, scrape_seconds=RATE_SECONDS / 4, step_seconds=step)
        if target.get("instant"):
            found = self._prometheus.ask("query", query=expr, time=f"{self.ended}")["result"]
            points = [(each["metric"], [each["value"]]) for each in found]
        else:
            span = {"start": f"{self.begun}", "end": f"{self.ended}", "step": f"{step}"}
            found = self._prometheus.ask("query_range", query=expr, **span)["result"]
            points = [(each["metric"], each["values"]) for each in found]
        return [self._curve(target, labels, values) for labels, values in points]

    def _curve(self, target: Json, labels: dict[str, str], values: list[list[Any]]) -> Curve:
        known = [(float(at) - self.begun, float(value)) for at, value in values]
        known = [(at, value) for at, value in known if math.isfinite(value)] or [(0.0, math.nan)]
        name = named(target.get("legendFormat", ""), labels)
        return Curve(name, labels, [at for at, _ in known], [value for _, value in known])


def picture(document: Json, sections: Sequence[str] | None, asker: Asker) -> Figure:
    """Draw the panels of `sections` (None for all), at their positions on the dashboard."""
    chosen, section = [], ""
    for panel in document["panels"]:
        section = panel["title"] if panel["type"] == "row" else section
        if sections is None or section in sections:
            chosen.append(panel)
    top = min(panel["gridPos"]["y"] for panel in chosen)
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in chosen)
    height = (bottom - top + 2) * UNIT_INCHES
    figure = pyplot.figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="#f4f5f5")
    above = 1 - 0.35 * UNIT_INCHES / height
    figure.text(0.006, above, document["title"], fontsize=12, weight="bold", va="top")
    caption = CAPTION.format(asker.span.seconds, asker.of)
    figure.text(0.994, above, caption, fontsize=7.5, color="#666", ha="right", va="top")
    for panel in chosen:
        place = panel["gridPos"]
        below = 1 - (place["y"] - top + 1.4 + place["h"]) * UNIT_INCHES / height
        tall = place["h"] * UNIT_INCHES / height
        box = Box(place["x"] / 24, below, place["w"] / 24, tall, height)
        if panel["type"] == "row":
            drawing.heading(figure, panel, box)
        else:
            drawing.draw(
                figure, panel, box, [asker.curves(target) for target in panel["targets"]], asker.span
            )
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the picture as a PNG with at most `MAX_COLORS` colors."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=figure.get_facecolor())
    pyplot.close(figure)
    Image.open(buffer).convert("RGB").quantize(MAX_COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES, f"{path}: {path.stat().st_size} bytes"


@contextmanager
def played() -> Iterator[dict[str, Asker]]:
    """Simulate a job for the pictures, and yield an `Asker` for each board."""
    from monitored_job import monitored_job
    from whole_job import JOB

    with (
        tempfile.TemporaryDirectory() as place,
        monitored_job(Path(place), steps=STEPS, pace=PACE, scrape_seconds=SCRAPE_SECONDS) as watched,
    ):
        while not watched.prometheus.series("headway_training_loss"):
            time.sleep(0.2)
        begun, patience = time.time(), time.monotonic() + 10 * STEPS * PACE
        while watched.job.course.step < STEPS - 1:
            assert time.monotonic() < patience, "the job does not come to its end"
            time.sleep(0.5)
        ended, of = time.time(), "a job that was played"
        job = ANY | {"kind": "RLTrainingJob", "job_name": JOB}
        own = dict.fromkeys(PARTS, Asker(watched.prometheus, begun, ended, job, of))
        yield own | {"fleet": Asker(watched.prometheus, begun, ended, ANY, of)}


@contextmanager
def recorded(record: Path) -> Iterator[dict[str, Asker]]:
    """Replay a recording of jobs on a cluster, and yield an `Asker` for each board."""
    from record import replayed, seen

    with replayed(record) as (prometheus, about):
        training, evaluation = (f'{{job_name="{name}"}}' for name in (about.training, about.evaluation))
        # The time span ends with the coordinator, because later instant queries would find nothing.
        begun, _ = seen(prometheus, f"vllm:num_requests_running{training}", about)
        _, ended = seen(prometheus, f"headway_training_loss{training}", about)
        job = ANY | {"kind": "RLTrainingJob", "job_name": about.training}
        own = dict.fromkeys(PARTS, Asker(prometheus, begun, ended, job, "a job on a cluster"))
        begun, _ = seen(prometheus, f"headway_job_info{training}", about)
        _, ended = seen(prometheus, f"headway_job_info{evaluation}", about)
        yield own | {"fleet": Asker(prometheus, begun, ended, ANY, "jobs on a cluster")}


def main() -> None:
    """Draw every board."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--record", type=Path, help="what was scraped of jobs on a cluster")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with recorded(options.record) if options.record else played() as askers:
        for board, parts in PARTS.items():
            document = json.loads((FILES / f"{board}.json").read_text())
            for name, sections in parts:
                save(picture(document, sections, askers[board]), options.folder / f"{name}.png")


if __name__ == "__main__":
    main()
