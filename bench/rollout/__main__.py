"""Measure, and write `bench/results/rollout.md` and `.json`.

    python -m bench.rollout [--only gateway,asynchrony,pause,cost] [--out FOLDER]

A section that is not run keeps the results it has.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.rollout import asynchrony, cost, gateway, pause
from bench.support import machine
from bench.support.report import Section, merge, page, prose

SECTIONS: dict[str, Callable[[Path], Section]] = {
    "gateway": gateway.measure,
    "asynchrony": asynchrony.measure,
    "pause": pause.measure,
    "cost": cost.measure,
}
INTRO = prose("""
    Made by `make bench-rollout` (one section: `make bench-rollout ONLY=gateway`). Every figure that is judged
    is a ratio of two sides measured in one run on one machine, with the absolute values beside it; the
    absolute values say nothing of other machines. All parts are the product's own (coordinator, gateway,
    sampler, fleet, weight agent, ledger, sandbox server) over vLLM's CPU build and models of random weights;
    the learner is scripted, since none of this depends on what it computes.
""")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by comma")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "bench" / "results")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    # Ended by a signal it still ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found: dict[str, Section] = {}
    for name in filter(None, options.only.split(",")):
        print(f"{name} ...", flush=True)
        measured = {"on": machine.described(), "at commit": machine.commit()}
        measured["load before"] = f"{machine.load():.1f}"
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
            found[name] = SECTIONS[name](Path(folder))
        measured["date"] = time.strftime("%Y-%m-%d", time.gmtime())
        found[name].measured = measured | {"took": f"{time.monotonic() - started:.0f} s"}
        write(options.out, found)
    for section in found.values():
        for goal in section.goals:
            print(f"{'met   ' if goal.met else 'MISSED'} {goal.what}: {goal.found}")
    print(f"written: {options.out / 'rollout.md'}")


def write(folder: Path, found: dict[str, Section]) -> None:
    """Both files."""
    folder.mkdir(parents=True, exist_ok=True)
    results = merge(folder / "rollout.json", found, list(SECTIONS))
    (folder / "rollout.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "rollout.md").write_text(page("Rollouts: what the coordinator costs and gains", INTRO, results))


if __name__ == "__main__":
    main()
