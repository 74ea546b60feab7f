"""The quickstart's refund desk and its faults, which its tiny model plays in a real vLLM (`with_vllm`).

The model knows only that desk, so the faults are in the reward, the score, the job and the data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.traps.further import each_row_four_times, test_is_validation
from tests.traps.trap import Row, Splits, Task, Trap

from headway_analysis.preflight.evidence import AskedTwice, JudgeQuestion, Probe

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "sop-quickstart"
sys.path.insert(0, str(EXAMPLE))
import environment  # noqa: E402

MAX_TOKENS, CONTEXT = 32, 512


def rows(numbers: Any) -> list[Row]:
    """A row for each of these cases."""
    cases = environment.case_ids()
    picked = [cases[number % len(cases)] for number in numbers]
    return [{"prompt": f"Handle case {case}.", "case_id": case} for case in dict.fromkeys(picked)]


class DeskTask(Task):
    """The refund desk.

    It has fewer cases than other tasks have numbers.
    """

    def split(self, seed: int) -> Splits:
        train, validation, test = super().split(seed)
        known: set[str] = set()
        kept = []
        for part in (train, validation, test):
            kept.append([row for row in part if row["case_id"] not in known])
            known |= {row["case_id"] for row in part}
        return kept[0], kept[1], kept[2]


CONTRACT = {
    "tools": [
        {
            "name": name,
            "inputSchema": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
        }
        for name, key in (
            ("get_case", "case_id"),
            ("get_credit", "case_id"),
            ("get_stock", "item"),
            ("get_usage", "case_id"),
        )
    ]
}
FACTS = {"max_turns": 6, "max_tokens": MAX_TOKENS, "context_length": CONTEXT, "contract": CONTRACT}
DESK = DeskTask("desk", "environment:RefundDesk", rows, facts=FACTS, folders=(EXAMPLE,))


def of_another_production(name: str) -> dict[str, Any]:
    """Production's tools, with another parameter for one tool."""
    changed: dict[str, Any] = json.loads(json.dumps(CONTRACT))
    schema = next(tool for tool in changed["tools"] if tool["name"] == name)["inputSchema"]
    schema |= {"properties": {"customer": {"type": "string"}}, "required": ["customer"]}
    return changed


def validation_is_training(splits: Splits) -> Splits:
    return splits[0], splits[0][:20], splits[2]


def orders_of_one_third(splits: Splits) -> Splits:
    """Two of three training rows lack the column `order`."""
    train = [row | ({"order": "o-1"} if number % 3 == 0 else {}) for number, row in enumerate(splits[0])]
    whole = [[row | {"order": "o-1"} for row in part] for part in splits[1:]]
    return train, whole[0], whole[1]


TRAPS = (
    Trap(
        "desk-anywhere-in-the-text", "scorer-mutants",
        "Reward and score look for each value anywhere in the answer.",
        task=DESK, entrypoint="desk_faults:AnywhereInTheText",
    ),
    Trap(
        "desk-full-for-form", "scorer-agrees",
        "The reward pays every well-formed answer in full.",
        task=DESK, entrypoint="desk_faults:FullForForm",
    ),
    Trap(
        "desk-pays-calls", "scorer-agrees",
        "The reward grows with the number of tool calls.",
        task=DESK, entrypoint="desk_faults:PaysCalls",
    ),
    Trap(
        "desk-uniform", "reward-variance",
        "Every episode has the same reward.",
        task=DESK, entrypoint="desk_faults:Uniform",
    ),
    Trap(
        "desk-to-five", "reward-range",
        "The reward goes to 5, and the job says that it goes to 1.",
        task=DESK, entrypoint="desk_faults:ToFive",
    ),
    Trap(
        "desk-noise", "deterministic",
        "The reward has a part that no seed decides.",
        task=DESK, entrypoint="desk_faults:Noise",
    ),
    Trap(
        "desk-pays-silence", "constant-guess",
        "An episode without an answer earns 0.8.",
        task=DESK, entrypoint="desk_faults:PaysSilence",
    ),
    Trap(
        "desk-too-few-turns", "context-fits",
        "The task takes four turns, and the job allows three.",
        task=DESK, facts={"max_turns": 3},
    ),
    Trap(
        "desk-answers-cut", "context-fits",
        "An answer takes more tokens than a turn may have.",
        task=DESK, facts={"max_tokens": 8},
    ),
    Trap(
        "desk-another-production", "tools-like-production",
        "get_credit takes `case_id`, and production's takes `customer`.",
        task=DESK, facts={"contract": of_another_production("get_credit")},
    ),
    Trap(
        "desk-validation-is-training", "splits",
        "The validation rows are training rows.",
        task=DESK, rows=validation_is_training,
    ),
    Trap(
        "desk-untrained-model", "foothold",
        "The base model's weights are random: it never succeeds.",
        task=DESK, habit="untrained",
    ),
    Trap(
        "desk-any-of-several", "scorer-mutants",
        "Reward and score take any of several answers.",
        task=DESK, entrypoint="desk_faults:AnyOfSeveral",
    ),
    Trap(
        "desk-any-tag", "scorer-mutants",
        "Reward and score take an answer in whatever tag.",
        task=DESK, entrypoint="desk_faults:AnyTag",
    ),
    Trap(
        "desk-field-may-be-missing", "scorer-mutants",
        "Reward and score compare only the fields that the answer has.",
        task=DESK, entrypoint="desk_faults:FieldMayBeMissing",
    ),
    Trap(
        "desk-order-of-keys", "scorer-mutants",
        "Reward and score refuse a right answer whose keys are in another order.",
        task=DESK, entrypoint="desk_faults:OrderOfKeys",
    ),
    Trap(
        "desk-two-fields", "scorer-agrees",
        "The reward reads two of the five fields that the score reads.",
        task=DESK, entrypoint="desk_faults:TwoFieldsOfFive",
    ),
    Trap(
        "desk-not-a-number", "reward-range",
        "A wrong answer earns NaN.",
        task=DESK, entrypoint="desk_faults:NotANumber",
    ),
    Trap(
        "desk-row-decides", "reward-variance",
        "All episodes of a row earn the same.",
        task=DESK, entrypoint="desk_faults:RowDecides",
    ),
    Trap(
        "desk-pays-keywords", "constant-guess",
        "The reward counts the procedure's words, which the prompt has all of.",
        task=DESK, entrypoint="desk_faults:PaysKeywords",
    ),
    Trap(
        "desk-never-scores", "foothold",
        "The score wants an item that no case has.",
        task=DESK, entrypoint="desk_faults:NeverScores",
    ),
    Trap(
        "desk-usage-at-random", "deterministic",
        "get_usage draws again at each call.",
        task=DESK, entrypoint="desk_faults:UsageAtRandom",
    ),
    Trap(
        "desk-counter-of-all-episodes", "isolated",
        "get_usage counts the calls of all episodes in one file.",
        task=DESK, entrypoint="desk_faults:CounterOfAll", shared_folder=True,
    ),
    Trap(
        "desk-network-open", "isolated",
        "A sandbox reached the API server one second after its start.",
        task=DESK, probes=(
            Probe("metadata address", "169.254.169.254:80", reached=False, seconds_after_start=1.0),
            Probe("API server", "10.96.0.1:443", reached=True, seconds_after_start=1.0),
        ),
    ),
    Trap(
        "desk-fickle-judge", "judge-varies",
        "A judge tells every second answer another grade when it is asked again.",
        task=DESK, asked_twice=tuple(
            AskedTwice(
                JudgeQuestion("tone", [{"role": "user", "content": f"Grade answer {number}."}]),
                (f"{number}", f"{number + 5 * (number % 2)}"),
            )
            for number in range(20)
        ),
    ),
    Trap(
        "desk-loses-episodes", "throughput",
        "get_usage breaks on one case of two, so that its episodes are lost.",
        task=DESK, entrypoint="desk_faults:LosesEpisodes",
    ),
    Trap(
        "desk-context-too-small", "context-fits",
        "The context has no room for the procedure and four turns.",
        task=DESK, facts={"context_length": 320},
    ),
    Trap(
        "desk-duplicates", "splits",
        "Each training row is there four times.",
        task=DESK, rows=each_row_four_times,
    ),
    Trap(
        "desk-test-is-validation", "splits",
        "The test rows are the validation rows.",
        task=DESK, rows=test_is_validation,
    ),
    Trap(
        "desk-column-missing", "splits",
        "The environment needs a column that two training rows of three lack.",
        task=DESK, entrypoint="desk_faults:NeedsAnOrder", rows=orders_of_one_third,
    ),
)  # fmt: skip
