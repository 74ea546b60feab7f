"""Measure, and write `bench/results/evaluation.md` and `.json`.

python -m bench.evaluation [--only speed] [--out FOLDER]
"""

from __future__ import annotations

from bench.evaluation import speed
from bench.support.report import prose
from bench.support.sections import Benchmark

BENCHMARK = Benchmark(
    name="evaluation",
    title="Evaluation: episodes a second",
    intro=prose("""
        Made by `make bench-eval`. A goal is a ratio of two sides, measured in one run on one machine and one
        vLLM server. The absolute values beside it say nothing of other machines. All parts are real: the
        coordinator, vLLM's CPU build under Headway's rollout server, sandbox servers, and an S3 server
        (versitygw). Inspect AI has the version that is locked.
    """),
    sections={"speed": speed.measure},
)

if __name__ == "__main__":
    BENCHMARK.main()
