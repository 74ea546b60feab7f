"""The traps that were written from the practice guide alone, before any check could find them."""

from __future__ import annotations

from collections.abc import Callable

from tests.traps.clean import ORDERS, PARCELS, SUMS, TRIAGE
from tests.traps.trap import Row, Splits, Trap


def validation_is_training(splits: Splits) -> Splits:
    train, _, test = splits
    return train, train[:20], test


def one_answer_for_nearly_all(splits: Splits) -> Splits:
    """Nine of ten rows have the most frequent answer."""
    train, validation, test = splits
    more = TRIAGE.rows(range(5000, 6000))
    usual = [row for row in more if row["answer"] == train[0]["answer"]]
    others = [row for row in more if row["answer"] != train[0]["answer"]]
    mixed = [others[place // 10] if place % 10 == 0 else usual[place] for place in range(120)]
    return mixed, validation, test


def some_without(column: str) -> Callable[[Splits], Splits]:
    """A third of the training rows have the column, and the others do not."""

    def changed(splits: Splits) -> Splits:
        train: list[Row] = [
            row | ({column: "west"} if place % 3 == 0 else {}) for place, row in enumerate(splits[0])
        ]
        return train, splits[1], splits[2]

    return changed


FROM_THE_GUIDE = (
    Trap(
        "wrong-tag-in-example", "prompt-labels",
        "The example in the prompt shows <verdict>, and the labels have <decision>.",
        task=TRIAGE, entrypoint="guide:WrongTag",
    ),
    Trap(
        "field-missing-in-example", "prompt-labels",
        "The example in the prompt lacks the field `fee`, which the labels have.",
        task=PARCELS, entrypoint="guide:MissingField",
    ),
    Trap(
        "substring-scorer", "scorer-mutants",
        "Reward and score look for the right word anywhere in the answer.",
        task=TRIAGE, entrypoint="guide:Substring",
    ),
    Trap(
        "bare-wrapper", "scorer-mutants",
        "The reward accepts the word in any tag or none, and the score wants <decision>.",
        task=TRIAGE, entrypoint="guide:BareWrapper",
    ),
    Trap(
        "full-reward-for-form", "scorer-agrees",
        "The reward pays every well-formed answer in full, whatever it says.",
        task=PARCELS, entrypoint="guide:FullForForm",
    ),
    Trap(
        "leaking-tool", "prompt-labels",
        "get_parcel shows the label.",
        task=PARCELS, entrypoint="guide:LeakingTool",
    ),
    Trap(
        "label-in-prompt", "prompt-labels",
        "The prompt shows the whole row, the answer with it.",
        task=SUMS, entrypoint="guide:LabelInPrompt",
    ),
    Trap(
        "clock-in-tool", "deterministic",
        "weigh tells the time.",
        task=PARCELS, entrypoint="guide:Clock",
    ),
    Trap(
        "order-of-a-set", "deterministic",
        "get_carrier lists a set, in another order in each process.",
        task=ORDERS, entrypoint="guide:HashOrder",
    ),
    Trap(
        "shared-state", "isolated",
        "Orders that another episode settled are in a file that all episodes share.",
        task=ORDERS, entrypoint="guide:SharedState", shared_folder=True,
    ),
    Trap(
        "saturated-base", "foothold",
        "The base model succeeds in nearly every episode.",
        task=PARCELS, skill=1.0,
    ),
    Trap(
        "no-foothold", "foothold",
        "The base model never succeeds.",
        task=PARCELS, habit="gibberish",
    ),
    Trap(
        "one-answer-for-nearly-all", "constant-guess",
        "Nine rows of ten have the same answer.",
        task=TRIAGE, rows=one_answer_for_nearly_all,
    ),
    Trap(
        "context-too-small", "context-fits",
        "One answer of get_parcel is longer than the context.",
        task=PARCELS, entrypoint="guide:LongTool",
    ),
    Trap(
        "too-few-turns", "context-fits",
        "The task takes four turns, and the job allows three.",
        task=PARCELS, facts={"max_turns": 3},
    ),
    Trap(
        "pays-tool-calls", "scorer-agrees",
        "The reward grows with the number of tool calls, right answer or not.",
        task=PARCELS, entrypoint="guide:PaysCalls",
    ),
    Trap(
        "two-fields-of-four", "scorer-agrees",
        "The reward reads two of the four fields that the score reads.",
        task=PARCELS, entrypoint="guide:Disagrees",
    ),
    Trap(
        "uniform-reward", "reward-variance",
        "Every episode has the same reward.",
        task=PARCELS, entrypoint="guide:Uniform",
    ),
    Trap(
        "reward-to-five", "reward-range",
        "The reward goes to 5, and the job says that it goes to 1.",
        task=PARCELS, entrypoint="guide:OffTheScale",
    ),
    Trap(
        "validation-is-training", "splits",
        "The validation rows are training rows.",
        task=PARCELS, rows=validation_is_training,
    ),
    Trap(
        "unlike-production", "tools-like-production",
        "get_plan takes `order_number`, and production's takes `order`.",
        task=ORDERS, entrypoint="guide:UnlikeProduction",
    ),
    Trap(
        "pays-silence", "constant-guess",
        "An episode without an answer earns 0.8, more than most answers.",
        task=TRIAGE, entrypoint="guide:PaysSilence",
    ),
    Trap(
        "column-missing", "splits",
        "The environment needs a column that two training rows of three lack.",
        task=PARCELS, entrypoint="guide:NeedsAColumn", rows=some_without("depot"),
    ),
)  # fmt: skip
