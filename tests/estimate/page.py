"""Runs the six jobs and writes `bench/results/estimate.md`, with the estimated and the actual costs."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.support.report import prose
from tests.estimate.jobs import JOBS, Job
from tests.estimate.run import Came, run

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "estimate.md"
NEAR = 0.2
"""Allowed error of the preflight's estimate, as a share of the actual cost."""
TOKENS = ("prefill", "cachedPrefill", "sample", "train", "evaluationSample")


def played(jobs: Sequence[Job]) -> list[tuple[Came, float]]:
    """What each job did, and the seconds that it took."""
    logging.getLogger("headway_coordinator").setLevel(logging.ERROR)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # sandboxes break off on purpose
    found = []
    for job in jobs:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            came = asyncio.run(run(job, Path(folder)))
        found.append((came, time.monotonic() - began))
        preflight = came.made("Preflight")
        print(f"{job.name}: {preflight['relative_error']:+.1%} in {found[-1][1]:.0f} s", flush=True)
    return found


def page(found: Sequence[tuple[Came, float]]) -> str:
    """The results as a Markdown page."""
    own = ["| job | what is its own |", "|---|---|"]
    own += [f"| {came.job.name} | {_about(came)} |" for came, _ in found]
    parts = [
        *INTRO,
        "\n".join(own),
        "\n".join(_costs(found)),
        *TOKENS_INTRO,
        "\n".join(_tokens(found)),
        *RUNNING_INTRO,
        "\n".join(_running(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _costs(found: Sequence[tuple[Came, float]]) -> list[str]:
    rows = [
        "| job | low | likely | high | actual | likely / actual | inside | by data alone | inside |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for came, _ in found:
        preflight, data = came.made("Preflight"), came.made("Data")
        low, likely, high = preflight["cost"]
        first, _, last = data["cost"]
        ratio = 1 + preflight["relative_error"]
        rows.append(
            f"| {came.job.name} | {low} | {likely} | {high} | {came.report['estimate']['actual']} "
            f"| {ratio:.3f} | {_yes(preflight['inside'])} | {first} to {last} | {_yes(data['inside'])} |"
        )
    return rows


def _tokens(found: Sequence[tuple[Came, float]]) -> list[str]:
    rows = [f"| job | {' | '.join(TOKENS)} |", "|---|" + "---|" * len(TOKENS)]
    for came, _ in found:
        estimated, used = came.made("Preflight")["usage"], came.report["usageByClass"]
        ratios = [
            f"{estimated[name][1] / used[name]:.2f}" if used.get(name) and name in estimated else ""
            for name in TOKENS
        ]
        rows.append(f"| {came.job.name} | {' | '.join(ratios)} |")
    return rows


def _running(found: Sequence[tuple[Came, float]]) -> list[str]:
    """The likely cost in the status, at a quarter, a half and three quarters of the steps."""
    rows = ["| job | 1/4 | 1/2 | 3/4 |", "|---|---|---|---|"]
    for came, _ in found:
        actual, steps = float(came.report["estimate"]["actual"]), came.report["steps"]
        by_step = {
            status["progress"]["step"]: float(status["estimate"]["likely"])
            for status in came.statuses
            if status.get("estimate", {}).get("basis") == "Running" and "progress" in status
        }
        shares = [_at(by_step, steps * part / 4) for part in (1, 2, 3)]
        rows.append(f"| {came.job.name} | {' | '.join(_ratio(each, actual) for each in shares)} |")
    return rows


def _at(by_step: dict[int, float], step: float) -> float | None:
    """The value at the first step that is not before `step`, or None."""
    later = sorted(number for number in by_step if number >= step)
    return by_step[later[0]] if later else None


def _ratio(likely: float | None, actual: float) -> str:
    return "" if likely is None else f"{likely / actual:.2f}"


def _about(came: Came) -> str:
    broken = f" ({came.broken} broke off)" if came.broken else ""
    return f"{came.job.about}{broken}"


def _yes(inside: bool) -> str:
    return "yes" if inside else "no"


def wrong(found: Sequence[tuple[Came, float]]) -> list[str]:
    """Estimates that are further off than allowed, and jobs that trained nothing."""
    problems = []
    for came, _ in found:
        preflight = came.made("Preflight")
        if not came.report["usageByClass"].get("train"):
            problems.append(
                f"{came.job.name}: no group had a gradient, so it trained nothing: change its spec"
            )
        if abs(preflight["relative_error"]) > NEAR:
            problems.append(
                f"{came.job.name}: {preflight['relative_error']:+.1%} off, and {NEAR:.0%} are allowed"
            )
        problems += [
            f"{came.job.name}: the cost is outside the range by {basis}"
            for basis in ("Data", "Preflight")
            if not came.made(basis)["inside"]
        ]
    return problems


def main() -> None:
    """Write the page, and fail if an estimate is wrong."""
    found = played(JOBS)
    RESULTS.write_text(page(found))
    if problems := wrong(found):
        raise SystemExit("\n".join(problems))


INTRO = prose("""
    # How right estimates were: six whole jobs

    Made by `make bench-estimate`. It fails if the preflight's likely cost is more than 20 % off the actual
    one, or the actual one is outside low to high. It also fails if a job trained nothing.
    [docs/estimate.md](../../docs/estimate.md) explains how an estimate is made.

    Each job is one process. **The product's own** are the coordinator with its whole loop, its HTTP, gateway,
    preflight, ledger, report and estimate. Agent, chat template and the sandbox's session are the product's
    too. In five jobs the learner is as well, one rank of DeepSpeed on the CPU, and the environment is that of
    `examples/sop-quickstart`. In these five the demo's tiny model samples every token and is trained, so that
    its lengths change as they will. **Not real** are pods, GPUs and vLLM: the model is computed by
    `tests/signals/sampler.py` behind vLLM's route, with a prefix cache. The sixth job's model and environment
    are played (`tests/estimate/spoken.py`). What it says has log-normal lengths that grow by 2 % a step, and
    its learner counts tokens without training. The estimate knows nothing of that: it is given the records of
    episodes and the ledger.

    Costs are US dollars by the default price book, in which sandbox seconds are free.
    """)
TOKENS_INTRO = prose("""
    Likely tokens over the actual ones, by class. Training tokens are the hardest to foresee: which groups
    have a gradient changes as the model learns.
    """)
RUNNING_INTRO = prose("""
    The likely cost over the actual one while the jobs ran, at a quarter, a half and three quarters of their
    steps:
    """)

if __name__ == "__main__":
    main()
