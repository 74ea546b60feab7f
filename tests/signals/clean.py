"""Runs that must be clean, over losses, advantages, sampling, sizes, staleness and learning rates.

A run's number draws its settings from what a reasonable job may have. Its held-out score decides whether the
run is clean (`describe.unclean`). A run that is not stays recorded, but does not count.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from tests.signals.circumstances import Circumstances, Split, World
from tests.signals.demo import quickstart

NUMBERS: Final[Mapping[Split, range]] = {
    "chosen_on": range(1, 41),
    "held_out": range(101, 122),
    "fresh": range(201, 245),
    "unseen": range(401, 461),
    "untouched": range(501, 631),
    "sealed": range(701, 831),
}
"""The numbers of the runs, which determine their settings. There are more than needed, because some runs do
not train well.

The runs are recorded in this order. So the recorded runs of `untouched` and `sealed` are the first ones of
their lists, whatever the recording time allowed. Their results did not select them.
"""
LOSSES: Final = ("ppo", "cispo", "gspo", "importance_sampling", "ppo")
ADVANTAGES: Final[tuple[Mapping[str, Any], ...]] = (
    {"method": "group_based"},
    {"method": "group_based", "normalize": "none"},
    {"method": "rloo"},
    {"method": "opo"},
    {"method": "gpg"},
    {"method": "reinforce_pp"},
    {"method": "reinforce_pp_baseline"},
    {"method": "grpo_passk"},
)
CORRECTIONS: Final = ("bypass", "bypass", "bypass", "none", "tis", "decoupled", "sequence_mask")
REDUCTIONS: Final = ("token_mean", "token_mean", "sequence_mean", "prompt_mean", "constant")
SIZES: Final = ((4, 6), (4, 8), (6, 4), (6, 6), (8, 4), (3, 8))
LAGS: Final[tuple[tuple[int, tuple[int, ...]], ...]] = (
    (0, (0,)),
    (0, (0,)),
    (1, (0, 0, 1)),
    (2, (0, 1)),
    (3, (0, 1, 2)),
    (3, (1, 2, 1, 3)),
)
"""Pairs of spec.algorithm.maxStepsOffPolicy and the lags of a batch's groups."""
WILD: Final[Mapping[Split, tuple[int, ...]]] = {"chosen_on": (2, 3, 7, 13)}
"""Runs with the same settings, but without the bound on the learning rate for losses in `UNBOUNDED`."""
RATES: Final = (5e-4, 1e-3, 1e-3, 2e-3, 2e-3)
UNBOUNDED: Final = ("gspo", "importance_sampling")
"""Losses without default bounds, or with bounds that rarely act. At the highest rate most of their runs
fail."""
HIGHEST: Final = 1e-3
SLOW: Final = 2e-4
"""Learning rate of every sixth run, which has not learned much when it ends."""
NOISE: Final = (0.0, 0.0, 0.01, 0.02, 0.04)
"""Relative errors of the servers' weights: those of half-precision formats, and larger ones."""


def drawn(number: int, split: Split, *, wild: bool = False) -> Circumstances:
    """The circumstances of the run with this number."""
    draw = random.Random(f"clean/{number}")
    loss = LOSSES[number % len(LOSSES)]
    batch, group = draw.choice(SIZES)
    limit, lags = draw.choice(LAGS)
    slow = number % 6 == 0
    rate = SLOW if slow else draw.choice(RATES)
    if loss in UNBOUNDED and not wild:
        rate = min(rate, HIGHEST)
    rank = draw.choice((8, 16, 16, 32))
    temperature = draw.choice((0.7, 0.8, 0.9, 1.0, 1.0, 1.1, 1.2))
    tasks = draw.random() < 0.2
    kl = draw.choice((0.0, 0.0, 0.001, 0.01))
    algorithm = {
        "loss": loss,
        "advantage": draw.choice(ADVANTAGES),
        "correction": draw.choice(CORRECTIONS),
        "reduction": draw.choice(REDUCTIONS),
        "batchSize": batch,
        "groupSize": group,
        "maxStepsOffPolicy": limit,
        "updatesPerBatch": draw.choice((1, 1, 1, 2)),
        "kl": {"coefficient": kl, "estimator": draw.choice(("k1", "k2", "k3")) if kl else "k3"},
        "entropy": {"coefficient": draw.choice((0.0, 0.0, 0.0, 0.001))},
    }
    spec: dict[str, Any] = {
        "algorithm": algorithm,
        "model": {"lora": {"rank": rank, "alpha": 2 * rank}},
        "optimizer": {"learningRate": rate},
        "rollout": {"sampling": {"temperature": temperature}},
        "evaluation": {"sampling": draw.choice(({}, {}, {"temperature": 0.7, "topP": 0.9}))},
    }
    judge = draw.choice(("own", "own", "own", "graded", "strict", "signed"))
    if judge == "signed":
        spec = quickstart.merged(spec, {"reward": {"range": [-1.0, 1.0]}})
    if tasks:
        spec = quickstart.merged(
            spec, {"data": {key: {"taskColumn": "task"} for key in ("train", "validation")}}
        )
    course = "learns slowly" if slow else "goes on after it has learned" if rate > 1e-3 else "learns"
    return Circumstances(
        name=f"{'wild' if wild else 'clean'}-{number:03d}",
        split=split,
        description=f"{loss} at learning rate {rate:g}: it {course}",
        steps=draw.choice((30, 34, 38)),
        seed=number,
        spec=spec,
        world=World(judge=judge, lags=lags, weight_noise=draw.choice(NOISE)),
    )


RUNS: Final = (
    *(drawn(number, split) for split, numbers in NUMBERS.items() for number in numbers),
    *(drawn(number, split, wild=True) for split, numbers in WILD.items() for number in numbers),
)
