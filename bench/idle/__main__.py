"""Measure, and write `bench/results/idle.md` and `.json`.

    [IDLE_JOBS=0,1,10] [IDLE_SECONDS=20] python -m bench.idle [--only operator,coordinator|page]

Sections that do not run keep their earlier results.
"""

from __future__ import annotations

from bench.idle import coordinator, operator
from bench.support.report import prose
from bench.support.sections import Benchmark

BENCHMARK = Benchmark(
    name="idle",
    title="Idle: what jobs cost while nothing happens",
    intro=prose("""
        Made by `make bench-idle` (one section: `make bench-idle ONLY=operator`). Seconds of a processor are
        those that the kernel counts for the process, requests those that the API server has in its audit
        log. A share of 1 % is a hundredth of one core.
    """),
    sections={"operator": operator.measure, "coordinator": coordinator.measure},
)

if __name__ == "__main__":
    BENCHMARK.main()
