"""Measure, and write `bench/results/learning.md` and `.json`.

    python -m bench.learning [--only ppo,cispo,importance_sampling|page] [--out FOLDER]

Sections that do not run keep their earlier numbers, and get the present texts. `page` runs no section.
"""

from __future__ import annotations

from functools import partial

from bench.learning import seeds
from bench.support.report import prose
from bench.support.sections import Benchmark

BENCHMARK = Benchmark(
    name="learning",
    title="Does it learn: the demo's job, by loss and seed",
    intro=prose("""
        Made by `make bench-learning` (one section: `make bench-learning ONLY=cispo`). Each row is one
        `RLTrainingJob`, the example of `make demo` with another loss or seed, from apply to Complete on a
        cluster on one machine. The seed is that of the base model, of sampling and of the order of the data.
        The names of the cases decide which are held out, whatever the seed. Each seed takes its first 64 of
        the same 164, so two seeds have a third of theirs in common.
    """),
    sections={loss: partial(seeds.measure, loss) for loss in seeds.LOSSES},
    from_rows={loss: partial(seeds.section, loss) for loss in seeds.LOSSES},
)

if __name__ == "__main__":
    BENCHMARK.main()
