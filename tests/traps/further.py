"""Further traps: faults that the list of checks names besides the guide's, and other forms of those."""

from __future__ import annotations

from tests.traps.clean import ORDERS, PARCELS, TRIAGE
from tests.traps.trap import Splits, Trap

from headway_analysis.preflight.evidence import AskedTwice, JudgeQuestion, Probe


def each_row_four_times(splits: Splits) -> Splits:
    return splits[0][:30] * 4, splits[1], splits[2]


def test_is_validation(splits: Splits) -> Splits:
    return splits[0], splits[1], splits[1]


FURTHER = (
    Trap(
        "seed-forgotten", "deterministic",
        "The reset draws from a generator that no seed was given to.",
        task=PARCELS, entrypoint="further:SeedForgotten",
    ),
    Trap(
        "counter-of-all-episodes", "isolated",
        "weigh counts the calls of all episodes in one file.",
        task=PARCELS, entrypoint="further:CounterOfAll", shared_folder=True,
    ),
    Trap(
        "network-open", "isolated",
        "A sandbox reached the metadata address two seconds after its start.",
        task=PARCELS, probes=(
            Probe("metadata address", "169.254.169.254:80", reached=True, seconds_after_start=2.0),
            Probe("API server", "10.96.0.1:443", reached=False, seconds_after_start=2.0),
        ),
    ),
    Trap(
        "fickle-judge", "judge-varies",
        "A judge grades from 0 to 100, and tells one answer in three another grade when it is asked again.",
        task=PARCELS, asked_twice=tuple(
            AskedTwice(
                JudgeQuestion("style", [{"role": "user", "content": f"Grade answer {number}."}]),
                (f"{number}", f"{number + 7 * (number % 3 == 0)}"),
            )
            for number in range(20)
        ),
    ),
    Trap(
        "field-may-be-missing", "scorer-mutants",
        "Reward and score compare only the fields that the answer has.",
        task=PARCELS, entrypoint="further:FieldMayBeMissing",
    ),
    Trap(
        "any-of-several", "scorer-mutants",
        "Reward and score take any of several answers.",
        task=TRIAGE, entrypoint="further:AnyOfSeveral",
    ),
    Trap(
        "order-of-keys", "scorer-mutants",
        "Reward and score refuse a right object whose keys are in another order.",
        task=PARCELS, entrypoint="further:OrderOfKeys",
    ),
    Trap(
        "pays-keywords", "constant-guess",
        "The reward counts the procedure's words, which the prompt has all of.",
        task=PARCELS, entrypoint="further:PaysKeywords",
    ),
    Trap(
        "row-decides", "reward-variance",
        "All episodes of a row earn the same.",
        task=PARCELS, entrypoint="further:RowDecides",
    ),
    Trap(
        "not-a-number", "reward-range",
        "An episode without an answer earns NaN.",
        task=PARCELS, entrypoint="further:NotANumber",
    ),
    Trap(
        "answers-cut", "context-fits",
        "Most answers are longer than a turn may be.",
        task=PARCELS, facts={"max_tokens": 20},
    ),
    Trap(
        "unread-calls", "tool-calls-parse",
        "The model writes its calls in a form that the job's parser does not read, and another does.",
        task=PARCELS, habit="unread-calls", facts={"other_parsers": {"mistral": 64}},
    ),
    Trap(
        "duplicates", "splits",
        "Each training row is there four times.",
        task=PARCELS, rows=each_row_four_times,
    ),
    Trap(
        "test-is-validation", "splits",
        "The test rows are the validation rows.",
        task=TRIAGE, rows=test_is_validation,
    ),
    Trap(
        "slow-tool", "throughput",
        "A tool waits eleven seconds for a live system.",
        task=ORDERS, entrypoint="further:SlowTool", episodes=8,
    ),
    Trap(
        "loses-episodes", "throughput",
        "A tool breaks on one order of two, so that its episodes are lost.",
        task=ORDERS, entrypoint="further:LosesEpisodes",
    ),
)  # fmt: skip
