"""The reward is wrong, or nothing is learned from it."""

from __future__ import annotations

from typing import Final

from tests.signals.circumstances import Symptom, World
from tests.signals.provocations.kit import (
    AGAIN,
    ENTROPY,
    TASKS,
    at,
    diverged,
    fallen,
    from_start,
    from_step,
    grown,
    job,
    multiplied,
    rate,
    run,
)

from headway_api.signals import SignalName as S

RUNS: Final = (
    run(
        "hasty", "chosen_on",
        "the reward charges for calls: the model answers before it knows",
        diverged(S.SCORE_DIVERGED),
        spec=job(rate(4e-3), at(1.2)), world=World("hasty"), steps=36,
    ),
    run(
        "brief", "chosen_on",
        "the reward pays for right fields and more for fewer calls, with cispo",
        diverged(S.SCORE_DIVERGED),
        spec=job(rate(3e-3), at(1.2), loss="cispo"), world=World("brief"), seed=40, steps=36,
    ),
    run(
        "impatient", "held_out",
        "the reward charges for every call and asks for no answer",
        diverged(S.SCORE_DIVERGED),
        spec=job(rate(4e-3), at(1.2)), world=World("impatient"), steps=36, seed=41,
    ),
    run(
        "hasty-in-training", "chosen_on",
        "the reward of training rows charges for calls; held-out rows are judged by what they are for",
        diverged(S.VALIDATION_DIVERGED), diverged(S.SCORE_DIVERGED),
        spec=job(rate(4e-3), at(1.2)), world=World("hasty", measured_by="own"), seed=42, steps=36,
    ),
    run(
        "mislabelled", "chosen_on",
        "labels of training rows are wrong, those of held-out rows are right",
        diverged(S.VALIDATION_DIVERGED), diverged(S.SCORE_DIVERGED),
        world=World("mislabelled", measured_by="own"), steps=36,
    ),
    run(
        "brief-in-training", "held_out",
        "the reward of training rows pays for fewer calls; held-out rows are judged by what they are for",
        diverged(S.VALIDATION_DIVERGED), diverged(S.SCORE_DIVERGED),
        spec=job(rate(4e-3), at(1.1)), world=World("brief", measured_by="own"), seed=43, steps=36,
    ),
    run(
        "one-field", "chosen_on",
        "the reward becomes one field's alone, whatever it should be",
        *from_step(10, "one number is all of the reward", S.REWARD_ONE_SIDED),
        step=10, judge="amount_alone",
    ),
    run(
        "one-term", "chosen_on",
        "one term of the reward is all that is left of it",
        *from_step(9, "one term is all of the reward", S.REWARD_ONE_SIDED),
        seed=44, step=9, judge="procedure_alone",
    ),
    run(
        "one-count", "held_out",
        "the reward becomes a count of calls",
        *from_step(11, "one number is all of the reward", S.REWARD_ONE_SIDED),
        spec=job(at(1.1)), seed=45, step=11, judge="impatient",
    ),
    run(
        "flat-zero", "chosen_on",
        "the reward wants a form that the model never writes",
        *from_start(S.REWARD_FLAT, S.NOTHING_TO_TRAIN),
        world=World("strict_and_rare"),
    ),
    run(
        "flat-random", "chosen_on",
        "the reward has nothing to do with what the model does",
        Symptom(S.REWARD_FLAT, 20, "nothing can be learned; by step 20 a sane run has"),
        multiplied(S.ENTROPY_RISING, ENTROPY, 10), fallen(S.ENTROPY_FALLING, ENTROPY, 4),
        grown(S.REPETITION, AGAIN),
        world=World("random"), steps=46,
    ),
    run(
        "flat-rate", "chosen_on",
        "a learning rate two thousand times too low",
        Symptom(S.REWARD_FLAT, 20, "the weights hardly move; by step 20 a sane run has learned"),
        spec=job(rate(1e-6)), seed=46, steps=36,
    ),
    run(
        "flat-rate-again", "held_out",
        "a learning rate five hundred times too low, with cispo",
        Symptom(S.REWARD_FLAT, 20, "the weights hardly move; by step 20 a sane run has learned"),
        spec=job(rate(4e-6), loss="cispo"), seed=47, steps=36,
    ),
    run(
        "flat-zero-again", "held_out",
        "the reward's parser never finds an answer",
        *from_start(S.REWARD_FLAT, S.NOTHING_TO_TRAIN),
        spec=job(batchSize=6, groupSize=4), world=World("nothing"), seed=48,
    ),
    run(
        "uniform-strict", "chosen_on",
        "all or nothing, small groups, a low temperature and a low learning rate: most groups score alike",
        *from_start(S.GROUPS_UNIFORM),
        spec=job(rate(1e-5), at(0.5), batchSize=8, groupSize=4), world=World("strict"),
    ),
    run(
        "uniform-cold", "chosen_on",
        "the temperature falls to 0.3 while there is much to learn",
        *from_step(12, "the temperature is 0.3", S.GROUPS_UNIFORM),
        spec=job(rate(2e-4), batchSize=8, groupSize=4), world=World("strict"), seed=49,
        step=12, then=at(0.3),
    ),
    run(
        "uniform-half", "chosen_on",
        "the reward becomes the same for every episode, and is not 0",
        *from_step(12, "every episode is worth 0.5", S.GROUPS_UNIFORM, S.NOTHING_TO_TRAIN),
        seed=50, step=12, judge="half",
    ),
    run(
        "uniform-cold-again", "held_out",
        "the temperature falls to 0.2 while there is much to learn, with gspo",
        *from_step(10, "the temperature is 0.2", S.GROUPS_UNIFORM),
        spec=job(rate(2e-4), loss="gspo", batchSize=8, groupSize=4), world=World("strict"), seed=51,
        step=10, then=at(0.2),
    ),
    run(
        "task-down", "chosen_on",
        "a tool that one of two tasks needs does not answer any more",
        *from_step(12, "the tool of the task stock is down", S.TASKS_DIVERGING),
        spec=job(TASKS), step=12, down="get_stock",
    ),
    run(
        "task-labels", "chosen_on",
        "the labels of one of two tasks are turned round",
        *from_step(10, "the task stock is rewarded upside down", S.TASKS_DIVERGING),
        spec=job(TASKS), seed=52, step=10, judge="stock_inverse",
    ),
    run(
        "task-down-again", "held_out",
        "the tool of the other task does not answer any more",
        *from_step(11, "the tool of the task credit is down", S.TASKS_DIVERGING),
        spec=job(TASKS), seed=53, step=11, down="get_credit",
    ),
)  # fmt: skip
