"""Measure, and write `bench/results/preflight.md` and `.json`.

    python -m bench.preflight [--only cost,alarms|page] [--out FOLDER]

Sections that do not run keep their earlier results.
"""

from __future__ import annotations

from bench.preflight import alarms, cost
from bench.support.report import prose
from bench.support.sections import Benchmark

BENCHMARK = Benchmark(
    name="preflight",
    title="The preflight: what its checks cost, and how often they are wrong",
    intro=prose("""
        Made by `make bench-preflight` (one section: `make bench-preflight ONLY=cost`). The checks are the
        product's, and so is the environment's interface. The environment is `tests/support/help_desk.py`, in
        this process. Its model is made up: it gets each field right as often as a given skill says, and
        rows differ in how hard they are. So no number includes the time of a sandbox or a model.
    """),
    sections={"cost": cost.measure, "alarms": alarms.measure},
)

if __name__ == "__main__":
    BENCHMARK.main()
