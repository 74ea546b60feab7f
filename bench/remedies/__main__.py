"""Measure, and write `bench/results/remedies.md` and `.json`, and curves beside them.

    python -m bench.remedies [--only seed-0,...|page] [--out FOLDER]

A section that is not run keeps the figures it has, and gets today's words; `page` runs none.
"""

from __future__ import annotations

from functools import partial

from bench.remedies import replay, seeds
from bench.support.report import prose
from bench.support.sections import Benchmark

judged = ", ".join(replay.REPLAYED)
BENCHMARK = Benchmark(
    name="remedies",
    title="A collapse, with and without remedies",
    intro=prose(f"""
        Made by `make bench-remedies` (one seed: `make bench-remedies ONLY=seed-0`). Each seed has two jobs.
        They differ in `spec.collapse.policy` alone: `Alert` tells of a sign of collapse, and `Remediate` also
        changes the job ([remedies](../../docs/remedies.md)). The model is the demo's, of
        `examples/sop-quickstart`.

        The jobs are set so that CISPO collapses by itself: learning rate {seeds.RATE:g}, and groups whose
        weights are {seeds.LAG} steps old when they are trained (`maxStepsOffPolicy: {seeds.LAG}`).
        Environment, reward and spec stay as they are throughout. Thresholds, order of remedies and
        `maxRemedies` are the defaults.

        Coordinator's loop, signals, remedies, learner process, their API, checkpoints and published weights
        are the product's. So are agent, gateway, environment and reward. There are no pods: the servers are a
        sampler of exact weights in the coordinator's process. They sample a group to its end by the
        weights that were newest when it began. Training waits for each validation. So nothing
        depends on a clock, and the two jobs of a seed are the same, bit for bit, until the first remedy. On
        another machine sums round otherwise, and the curves are others.

        **The figures predate the signals of today.** What was raised, and when a job was changed, is as it
        was at the commit that a section names; commit a2ec474 made signals more patient. Each section also
        has what the signals of today make of the figures of `Alert` that are on record
        (`make bench-remedies ONLY=page`). Where the first sign comes at another step, `Remediate` would now
        change the job at another step, and its curve would be another. Three signs can be judged again:
        {judged}. PolicyMismatch also looks at the effective sample size, which is not on record: with it the
        sign may come sooner than is told. Ages are taken as set. No job was trained again.

        Rate, lag and length were chosen by looking at what such jobs came to, seeds 0 to 2 among them. A
        validation of 64 rows has a standard error of about 0.05: no gain over the best before is significant.
    """),
    sections={f"seed-{seed}": partial(seeds.measure, seed) for seed in seeds.SEEDS},
    from_rows={f"seed-{seed}": partial(seeds.section, seed) for seed in seeds.SEEDS},
)

if __name__ == "__main__":
    BENCHMARK.main()
