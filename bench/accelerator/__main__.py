"""Measure, and write `bench/results/accelerator.md` and `.json`.

    python -m bench.accelerator [--only steps,attention,...] [--out FOLDER]

Sections that do not run keep their earlier results. The benchmark needs one NVIDIA GPU. With REHEARSE=1
everything runs in a small size on any device. This shows only that the program works.
"""

from __future__ import annotations

import sys

from bench.accelerator import attention, families, hardware, process, speed, steps, versions
from bench.support.report import prose
from bench.support.sections import PAGE, Benchmark

BENCHMARK = Benchmark(
    name="accelerator",
    title="The learner on a GPU",
    intro=prose("""
        Made by `make bench-gpu` on a machine with one NVIDIA GPU (one section: `make bench-gpu ONLY=steps`).
        The learner is the product's own: planner, layout, policy, objective, DeepSpeed engine over NCCL with
        one rank, publishers, checkpoints. Weights are random. Every number that is judged is a ratio or a
        difference of two sides of one run; the absolute values say nothing of other machines.

        A section that is not here has not been measured yet.

        This does not cover vLLM on a GPU, and the images for GPUs. It covers one GPU alone: no NCCL between
        ranks, no ZeRO over GPUs, no weights from memory to memory over NCCL.
    """),
    sections={
        "versions": versions.measure,
        "steps": steps.measure,
        "attention": attention.measure,
        "families": families.measure,
        "process": process.measure,
        "full": speed.full,
        "lora": speed.lora,
        "turns": speed.turns,
    },
    described=hardware.described,
)

if __name__ == "__main__":
    if hardware.kind() == "cpu" and not hardware.rehearsing() and PAGE not in sys.argv:
        sys.exit("bench.accelerator needs an NVIDIA GPU that torch can use, and this machine shows none")
    BENCHMARK.main()
