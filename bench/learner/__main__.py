"""Measure, and write `bench/results/learner.md` and `.json`.

    python -m bench.learner [--only throughput,extension,memory,delta,checkpoint] [--out FOLDER]

Sections that do not run keep their earlier results.
"""

from __future__ import annotations

from bench.learner import checkpoint, delta, extension, memory, throughput
from bench.support.report import prose
from bench.support.sections import Benchmark

BENCHMARK = Benchmark(
    name="learner",
    title="The learner: what a step costs",
    intro=prose("""
        Made by `make bench-learner` (one section: `make bench-learner ONLY=throughput`). Every number that is
        judged is a ratio of two sides, measured in one run on one machine. The absolute values beside it say
        nothing of other machines. The learner is the product's own (planner, layout, policy, objective,
        DeepSpeed engine, publishers), on models of random weights.
    """),
    sections={
        "throughput": throughput.measure,
        "extension": extension.measure,
        "memory": memory.measure,
        "delta": delta.measure,
        "checkpoint": checkpoint.measure,
    },
)

if __name__ == "__main__":
    BENCHMARK.main()
