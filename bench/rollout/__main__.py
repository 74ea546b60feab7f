"""Measure, and write `bench/results/rollout.md` and `.json`.

    python -m bench.rollout [--only gateway,turn,asynchrony,pause,validation,dedicated,cost] [--out FOLDER]

Sections that do not run keep their earlier results.
"""

from __future__ import annotations

from bench.rollout import asynchrony, cost, dedicated, gateway, pause, turn, validation
from bench.support.report import prose
from bench.support.sections import Benchmark

BENCHMARK = Benchmark(
    name="rollout",
    title="Rollouts: what the coordinator costs and gains",
    intro=prose("""
        Made by `make bench-rollout` (one section: `make bench-rollout ONLY=gateway`). Every number that is
        judged is a ratio of two sides, measured in one run on one machine. The absolute values beside it say
        nothing of other machines. All parts are the product's own: coordinator, gateway, sampler, fleet,
        weight agent, ledger, sandbox server. They run over vLLM's CPU build and models of random weights. The
        learner is scripted, since none of this depends on what it computes.
    """),
    sections={
        "gateway": gateway.measure,
        "turn": turn.measure,
        "asynchrony": asynchrony.measure,
        "pause": pause.measure,
        "validation": validation.measure,
        "dedicated": dedicated.measure,
        "cost": cost.measure,
    },
)

if __name__ == "__main__":
    BENCHMARK.main()
