"""Checks of answers: which answer is right, what a guess scores, and what a judge accepts wrongly."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from help_desk import (
    ACTIONS,
    PROMPT,
    AnyTagDesk,
    Desk,
    ForgetfulDesk,
    GenerousDesk,
    LeakingDesk,
    OneFieldDesk,
    OrderOfKeysDesk,
    OtherTagDesk,
    SubstringDesk,
    TellingDesk,
    WholeDesk,
    desk_baseline,
    desk_model,
    desk_rows,
    written,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_baselines import Policy, a_baseline, a_sample, an_episode, play_all, sample_of

from headway_analysis.preflight.answers import parsed, tags_in
from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, Call
from headway_analysis.preflight.examples import examples_in, names_it
from headway_analysis.preflight.labels import label_of, words_of
from headway_analysis.preflight.mutants import altered, mutants_of
from headway_sandbox.environment import Done, Environment, Observation, Reward, Transcript, tool, user

Row = Mapping[str, Any]


def found(check: str, make: type[Environment] = Desk, baseline: Baseline | None = None) -> Finding:
    """A check's finding about an environment, after its scripts were really played."""
    given = desk_baseline(make) if baseline is None else baseline
    return BY_ID[check].judge(given, play_all(lambda: make({}), BY_ID[check].scripts(given)))


@pytest.mark.parametrize(
    ("text", "kind", "fields", "tag"),
    [
        ('<answer>{"a": 1}</answer>', "object", {"a": 1}, "answer"),
        ("<think>{}</think>\n<out>a: gold\nb: 5</out>", "lines", {"a": "gold", "b": "5"}, "out"),
        ('{"a": [1, 2]}', "object", {"a": [1, 2]}, None),
        ('It is\n```json\n{"a": 1}\n```\nas asked.', "object", {"a": 1}, None),
        ("tier: gold\nlimit: 5", "lines", {"tier": "gold", "limit": "5"}, None),
        ("\\boxed{42}", "text", {"": "42"}, None),
        ("The answer is 42", "text", {"": "The answer is 42"}, None),
        ("", "text", {"": ""}, None),
    ],
)
def test_an_answer_is_taken_apart(text: str, kind: str, fields: Row, tag: str | None) -> None:
    answer = parsed(text)
    assert (answer.kind, dict(answer.fields), answer.tag) == (kind, fields, tag)


@given(st.text(max_size=300))
def test_any_text_is_an_answer_of_some_kind(text: str) -> None:
    assert parsed(text).fields
    assert all(isinstance(mutant.text, str) for mutant in mutants_of(parsed(text), {}, tags_in(text)))


@given(st.dictionaries(st.text("abc", min_size=1), st.integers() | st.text("xyz"), min_size=1))
def test_an_answer_written_again_has_the_same_meaning(fields: dict[str, Any]) -> None:
    text = f"<answer>{json.dumps(fields)}</answer>"
    assert parsed(parsed(text).text).fields == tuple(fields.items())


def test_every_kind_of_mutant_is_made() -> None:
    answer = parsed(written({"action": "refund", "limit": 5}))
    others = {"action": ["refund", "repair"]}
    made = {mutant.label: mutant for mutant in mutants_of(answer, others, ["answer"])}
    assert made["field dropped: action"].text == '<answer>{"limit": 5}</answer>'
    assert made["value altered: limit"].text == '<answer>{"action": "refund", "limit": 14}</answer>'
    assert made["value altered: action"].text == '<answer>{"action": "repair", "limit": 5}</answer>'
    assert made["another tag"].text.startswith("<other_answer>")
    assert made["tag left out"].text == '{"action": "refund", "limit": 5}'
    assert made["text around"].text.count("<answer>") == 1
    assert made["two answers, the right one first"].text.count("<answer>") == 2
    assert made["other order"].text == '<answer>{"limit": 5, "action": "refund"}</answer>'
    assert "REFUND" in made["other case"].text
    assert [label for label, mutant in made.items() if not mutant.harmful] == [
        "white space around",
        "text around",
        "other spacing",
        "other order",
        "other case",
    ]


def test_prose_beside_an_answer_is_left_alone() -> None:
    answer = parsed('{"reasoning": "as seen", "note": "x", "why": "one two three four five six", "value": 3}')
    labels = [mutant.label for mutant in mutants_of(answer, {}, ())]
    assert [label for label in labels if label.startswith("value altered")] == ["value altered: value"]


PLAIN = st.booleans() | st.integers() | st.text()
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@settings(max_examples=30)
@given(NESTED)
def test_an_altered_value_differs_from_the_original(value: Any) -> None:
    assert altered(value) != value or value == "none of these"


def test_prose_is_altered_to_prose_that_says_something_else() -> None:
    text = "The lamp is old, and so it is a refund"
    assert (
        altered(text, ["It was late and broken, hence a refund", "The box is new: repair it"])
        == "none of these"
    )
    assert altered(text, ["As it was late and broken: repair"]) == "As it was late and broken: repair"


def test_a_field_without_a_value_need_not_be_there() -> None:
    answer = parsed('{"action": "refund", "limit": null}')
    labels = [mutant.label for mutant in mutants_of(answer, {}, ())]
    assert "field dropped: action" in labels
    assert "field dropped: limit" not in labels


@pytest.mark.parametrize("name", ["case_id", "caseId", "case-id", "Case ID"])
def test_a_field_is_named_in_any_style(name: str) -> None:
    assert names_it("Give the case id first.", name)
    assert names_it("{'case_id': 3}", name)
    assert not names_it("Give the suitcase idly.", name)


def test_a_strict_judge_passes() -> None:
    finding = found("scorer-mutants")
    assert finding.verdict == "Pass"
    assert finding.value == 0.0
    assert dict(finding.numbers)["full score: other order"] == 1.0


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (SubstringDesk, "any value of limit is accepted"),
        (AnyTagDesk, "another tag is accepted than <answer>"),
        (OneFieldDesk, "limit may be missing"),
        (GenerousDesk, "action may be missing"),
    ],
)
def test_a_lenient_judge_fails_with_its_rule(make: type[Environment], rule: str) -> None:
    finding = found("scorer-mutants", make)
    assert finding.verdict == "Fail"
    assert rule in finding.observed
    assert "changed:" in finding.examples[0].text


def test_a_judge_that_refuses_another_order_is_a_warning() -> None:
    finding = found("scorer-mutants", OrderOfKeysDesk)
    assert finding.verdict == "Warn"
    assert "fields in another order are refused" in finding.observed


def talkative(row: Row, index: int) -> tuple[Sequence[Call], str]:
    calls, answer = desk_model()(row, index)
    return calls, f"Sure! {answer}" if index % 2 else answer


def test_a_judge_that_refuses_the_models_own_words_is_a_warning() -> None:
    baseline = sample_of(lambda: Desk({}), desk_rows(13), talkative, 8)
    finding = found("scorer-mutants", Desk, baseline)
    assert finding.verdict == "Warn"
    assert "words around the answer are refused" in finding.observed


def test_if_no_answer_scores_full_labels_are_mutated() -> None:
    assert found("scorer-mutants", Desk, desk_baseline(skill=-1.0)).verdict == "Pass"
    finding = found("scorer-mutants", AnyTagDesk, desk_baseline(AnyTagDesk, skill=-1.0))
    assert finding.verdict == "Fail"


def test_a_field_that_the_model_adds_need_not_be_judged() -> None:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        return (), written({**row["expected"], "case": row["case_id"]})

    class TolerantDesk(Desk):
        def score(self, transcript: Transcript) -> float:
            return float(self.right(transcript) == 1)

    baseline = sample_of(lambda: TolerantDesk({}), desk_rows(13), policy, 8)
    assert found("scorer-mutants", TolerantDesk, baseline).verdict == "Pass"


class Sum(Environment):
    """An environment with plain answers. The last number counts, as is usual for sums."""

    def reset(self, row: Row, seed: int) -> Observation:
        self.row = row
        return Observation([user(row["prompt"])])

    def reward(self, transcript: Transcript) -> Reward | float:
        return self.score(transcript)

    def score(self, transcript: Transcript) -> float:
        numbers = re.findall(r"-?\d+", transcript.answer)
        return float(bool(numbers) and numbers[-1] == str(self.row["total"]))


class AnyNumber(Sum):
    """Any number in the answer counts."""

    def score(self, transcript: Transcript) -> float:
        return float(str(self.row["total"]) in re.findall(r"-?\d+", transcript.answer))


def sums(seed: int = 0, count: int = 13) -> list[Row]:
    drawn = random.Random(seed)
    pairs = [(drawn.randrange(10, 99), drawn.randrange(10, 99)) for _ in range(count)]
    return [{"prompt": f"What is {a} + {b}? #{at}", "total": a + b} for at, (a, b) in enumerate(pairs)]


def adder(seed: int = 0) -> Policy:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        drawn = random.Random(f"{seed}/{row['prompt']}/{index}")
        return (), f"It is {row['total'] + (drawn.random() > 0.5) * drawn.randrange(1, 9)}"

    return policy


def test_without_any_full_score_there_are_no_mutants() -> None:
    baseline = sample_of(lambda: Sum({}), sums(), lambda row, index: ((), "no idea"), 8)
    finding = found("scorer-mutants", Sum, baseline)
    assert (finding.verdict, finding.needs) == ("Unknown", 59)


def test_only_the_last_number_counts() -> None:
    baseline = sample_of(lambda: Sum({}), sums(), adder(), 8)
    assert found("scorer-mutants", Sum, baseline).verdict == "Pass"


class Word(Sum):
    """An environment with prose answers, in which one word must occur."""

    def score(self, transcript: Transcript) -> float:
        return float([each for each in ACTIONS if each in transcript.answer] == [self.row["total"]])


def test_prose_of_another_row_may_be_right_by_chance() -> None:
    answers = {
        "voucher": "I have thought and would take a voucher now",
        "refund": "We should all agree on a refund here",
    }
    rows = [
        {"prompt": f"case {at}", "total": total} for at, total in enumerate(["voucher", "refund", "refund"])
    ]

    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        odd = row["prompt"] == "case 2"
        return (), answers["voucher"].replace("voucher", "refund") if odd else answers[row["total"]]

    baseline = sample_of(lambda: Word({}), rows, policy, 8)
    checked = found("scorer-mutants", Word, baseline)
    assert dict(checked.numbers)["full score: value altered"] == pytest.approx(1 / 3)
    assert checked.verdict == "Pass"


def test_a_judge_that_takes_any_number_is_lenient() -> None:
    baseline = sample_of(lambda: AnyNumber({}), sums(), adder(), 8)
    finding = found("scorer-mutants", AnyNumber, baseline)
    assert finding.verdict == "Fail"
    assert "one of two answers is enough" in finding.observed


class Ticket(Desk):
    """An environment whose answer is a tool call that ends the episode."""

    def reset(self, row: Row, seed: int) -> Observation:
        self.given: Row = {}
        return super().reset(row, seed)

    def prompt(self) -> str:
        return "Look the case up, then submit."

    @tool
    def submit(self, action: str, limit: int) -> Done:
        """Answer."""
        self.given = {"action": action, "limit": limit}
        return Done("thank you")

    def read(self, text: str) -> Row:
        return self.given


class LenientTicket(Ticket):
    """Only the action of the call counts."""

    def score(self, transcript: Transcript) -> float:
        return float(self.given.get("action") == self.row["expected"]["action"])


def submitter(row: Row, index: int) -> tuple[Sequence[Call], str | None]:
    answer = dict(row["expected"])
    if index % 2:
        answer["limit"] += 1
    return (Call("get_case", {"case_id": row["case_id"]}), Call("submit", answer)), None


def test_an_answer_may_be_the_call_that_ends_the_episode() -> None:
    strict = sample_of(lambda: Ticket({}), desk_rows(13), submitter, 8)
    lenient = sample_of(lambda: LenientTicket({}), desk_rows(13), submitter, 8)
    finding = found("scorer-mutants", Ticket, strict)
    assert finding.verdict == "Pass"
    assert dict(finding.numbers)["full score: value altered: limit"] == 0.0
    assert "any value of limit is accepted" in found("scorer-mutants", LenientTicket, lenient).observed
    assert found("constant-guess", Ticket, strict).verdict == "Pass"
    assert found("deterministic", Ticket, strict).verdict == "Pass"
    assert found("prompt-labels", Ticket, strict).verdict == "Pass"


def test_no_guess_scores_where_answers_differ() -> None:
    finding = found("constant-guess")
    assert finding.verdict == "Pass"
    assert any(name.startswith("success of oracle") and value == 1.0 for name, value in finding.numbers)


@pytest.mark.parametrize("scripted", [False, True])
def test_without_a_model_its_success_is_not_shown(scripted: bool) -> None:
    measured = desk_baseline()
    facts = dataclasses.replace(measured.facts, scripted=scripted)
    finding = found("constant-guess", Desk, dataclasses.replace(measured, facts=facts))
    assert ("success of the baseline episodes" in dict(finding.numbers)) is not scripted


def test_one_answer_for_most_rows_fails() -> None:
    rows = [{**row, "expected": {"action": "refund", "limit": 5}} for row in desk_rows(13)]
    finding = found("constant-guess", Desk, sample_of(lambda: Desk({}), rows, desk_model(0.6), 8))
    assert finding.verdict == "Fail"
    assert "most frequent answer" in finding.observed
    assert finding.field == "spec.data.train"
    assert dict(finding.numbers)["share of the most frequent label"] == 1.0


def test_a_judge_that_pays_an_empty_answer_fails() -> None:
    finding = found("constant-guess", GenerousDesk)
    assert finding.verdict == "Fail"
    assert "empty answer: success 8 of 8" in finding.observed
    assert finding.examples[0].title in ("empty answer", "most frequent answer")


def test_guesses_on_few_rows_are_unknown() -> None:
    finding = found("constant-guess", Desk, desk_baseline(rows=3))
    assert finding.verdict == "Unknown"
    assert finding.needs == 8


def test_two_alternating_answers_are_not_constant() -> None:
    rows = [
        {**row, "expected": {"action": ACTIONS[at % 2], "limit": 5}} for at, row in enumerate(desk_rows(16))
    ]
    finding = found("constant-guess", Desk, sample_of(lambda: Desk({}), rows, desk_model(0.6), 8))
    assert finding.verdict == "Pass"
    assert dict(finding.numbers)["share of the most frequent label"] == 0.5


def test_a_label_of_a_little_more_than_half_passes() -> None:
    for maximum, verdict in ((550, "Pass"), (650, "Fail")):
        rows = [{"prompt": f"case {at}", "label": "yes" if at < maximum else "no"} for at in range(1000)]
        assert BY_ID["constant-guess"].judge(a_baseline([], rows=rows), ()).verdict == verdict


def test_labels_that_differ_by_a_sign_are_two() -> None:
    rows = [{"prompt": f"case {at}", "label": (-1, 1)[at % 2]} for at in range(40)]
    finding = BY_ID["constant-guess"].judge(a_baseline([], rows=rows), ())
    assert dict(finding.numbers)["share of the most frequent label"] == 0.5


class CallPayingDesk(Desk):
    """The reward pays for every call."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return 0.7 * self.right(transcript) + 0.1 * min(3, len(transcript.calls))


def test_a_reward_that_pays_calls_alone_is_a_warning() -> None:
    finding = found("constant-guess", CallPayingDesk)
    assert finding.verdict == "Warn"
    assert "Random tool calls add to the reward" in finding.observed


def test_random_calls_are_drawn_from_the_seed_and_fit_the_schema() -> None:
    scripts = BY_ID["constant-guess"].scripts
    calls = [each.calls for each in scripts(desk_baseline()) if each.label.startswith("random")]
    again = [each.calls for each in scripts(desk_baseline()) if each.label.startswith("random")]
    assert calls == again
    assert all(set(call.arguments) == {"case_id"} for each in calls for call in each)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"prompt": "p", "expected": 3}, "expected"),
        ({"prompt": "p", "correctAnswer": 3}, "correctAnswer"),
        ({"prompt": "p", "ground_truth": 3}, "ground_truth"),
        ({"prompt": "p", "answer_format": "json"}, None),
        ({"prompt": "p", "case_id": "3"}, None),
        ({"prompt": "p", "expected_calls": 3, "expected_answer": "x"}, "expected_answer"),
    ],
)
def test_the_labels_column_is_known_by_its_name(columns: Row, label: str | None) -> None:
    found = label_of(a_baseline([], rows=[columns]))
    assert (None if found is None else found.column) == label


@pytest.mark.parametrize(
    ("prompt", "label"), [("Where was it sent?", "target_city"), ("Send it to Rome.", None)]
)
def test_a_target_in_the_prompt_is_not_a_label(prompt: str, label: str | None) -> None:
    row = {"prompt": prompt, "target_city": "Rome"}
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "I do not know"}]
    found = label_of(a_baseline([a_sample(an_episode(messages), row)]))
    assert (None if found is None else found.column) == label


def test_a_column_that_equals_full_answers_is_the_label() -> None:
    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        return (), str(row["total"] + index % 2)

    label = label_of(sample_of(lambda: Sum({}), sums(), policy, 4))
    assert label is not None
    assert (label.column, label.named) == ("total", False)


def test_words_of_a_name_are_the_same_in_any_style() -> None:
    assert words_of("expectedAnswer") == words_of("expected_answer") == words_of("Expected-Answer")


def test_a_prompt_that_fits_its_labels_passes() -> None:
    assert found("prompt-labels").verdict == "Pass"


@pytest.mark.parametrize(
    ("make", "verdict", "observation"),
    [
        (ForgetfulDesk, "Fail", "Labels have the field `limit`, and the prompt does not name it"),
        (OtherTagDesk, "Fail", "The label scores full in <answer>, and not in <final>"),
        (TellingDesk, "Fail", "The prompt contains the label in 13 of 13"),
        (LeakingDesk, "Fail", "Tool `get_case` returns the label as `expected`"),
        (WholeDesk, "Warn", "The first call, of `get_case`, returns every field"),
    ],
)
def test_a_prompt_that_does_not_fit_is_reported(
    make: type[Environment], verdict: str, observation: str
) -> None:
    seen = found("prompt-labels", make, desk_baseline(make, skill=0.3))
    assert seen.verdict == verdict
    assert observation in seen.observed
    assert seen.examples


def test_further_fields_of_labels_need_not_be_asked_for() -> None:
    """The score reads two of three fields. The third is a note on the row."""

    class NotedDesk(Desk):
        def score(self, transcript: Transcript) -> float:
            answer, expected = self.read(transcript.answer), self.row["expected"]
            return float(all(answer.get(name) == expected[name] for name in ("action", "limit")))

    rows = [
        {**row, "expected": {**row["expected"], "difficulty": at}} for at, row in enumerate(desk_rows(13))
    ]
    for skill in (-1.0, 0.5):
        model = desk_model(skill)

        def policy(row: Row, index: int, model: Policy = model) -> tuple[Sequence[Call], str | None]:
            less = {name: value for name, value in row["expected"].items() if name != "difficulty"}
            return model({**row, "expected": less}, index)

        baseline = sample_of(lambda: NotedDesk({}), rows, policy, 8)
        assert found("prompt-labels", NotedDesk, baseline).verdict == "Pass"
        succeeds = any(one.record.score for one in baseline.sampled)
        assert BY_ID["prompt-labels"].judge(baseline, ()).verdict == ("Pass" if succeeds else "Fail")
        assert found("scorer-mutants", NotedDesk, baseline).verdict == "Pass"


def test_a_tool_that_works_the_answer_out_gives_nothing_away() -> None:
    class Calculating(Sum):
        @tool
        def calculate(self, term: str) -> dict[str, int]:
            """Work a term out."""
            return {"answer": self.row["answer"] if term == "a long one" else 0}

        @tool
        def look_up(self) -> dict[str, int]:
            """The whole row."""
            return {"answer": self.row["answer"]}

        def score(self, transcript: Transcript) -> float:
            return float(transcript.answer == str(self.row["answer"]))

    rows = [{"prompt": row["prompt"], "answer": row["total"]} for row in sums()]

    def calling(call: Call) -> Baseline:
        return sample_of(
            lambda: Calculating({}), rows, lambda row, index: ((call,), f"{row['answer'] + index % 2}")
        )

    worked_out, looked_up = calling(Call("calculate", {"term": "a long one"})), calling(Call("look_up", {}))
    assert found("prompt-labels", Calculating, worked_out).verdict == "Pass"
    assert "Tool `look_up` returns the label" in found("prompt-labels", Calculating, looked_up).observed


def test_an_example_with_a_label_is_not_a_leak() -> None:
    class ShowingDesk(Desk):
        def prompt(self) -> str:
            return f"{PROMPT}\nThe answer is repair where it is broken."

        def right(self, transcript: Transcript) -> float:
            return float(transcript.answer == self.row["answer"])

        def score(self, transcript: Transcript) -> float:
            return self.right(transcript)

    rows = [{"prompt": f"case {at}", "case_id": f"c{at}", "answer": ACTIONS[at % 3]} for at in range(13)]
    baseline = sample_of(lambda: ShowingDesk({}), rows, lambda row, index: ((), ACTIONS[index % 4]), 8)
    assert "tells" not in found("prompt-labels", ShowingDesk, baseline).observed


def test_rows_without_a_label_are_unknown() -> None:
    baseline = sample_of(lambda: Sum({}), [{"prompt": "1 + 1", "total": 2}], adder(), 4)
    assert found("prompt-labels", Sum, baseline).verdict == "Unknown"


def test_the_choices_of_a_prompt_are_not_a_leak() -> None:
    class Choice(Desk):
        def prompt(self) -> str:
            return "Answer with one of " + ", ".join(ACTIONS)

        def score(self, transcript: Transcript) -> float:
            return float(transcript.answer.strip() == self.row["expected"])

        def reward(self, transcript: Transcript) -> Reward | float:
            return self.score(transcript)

    rows = [{"prompt": f"case {at}", "case_id": f"c{at}", "expected": ACTIONS[at % 5]} for at in range(15)]

    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        return (), row["expected"] if (index + len(row["prompt"])) % 2 else "decline"

    baseline = sample_of(lambda: Choice({}), rows, policy, 4)
    assert found("prompt-labels", Choice, baseline).verdict == "Pass"
    assert found("scorer-mutants", Choice, baseline).verdict == "Pass"


class Refunds(Environment):
    """An environment that is judged by its tool call. Nothing reads the last message."""

    def reset(self, row: Row, seed: int) -> Observation:
        self.row, self.done = row, list[str]()
        return Observation([user(row["prompt"])])

    @tool
    def refund(self, order: str) -> str:
        """Refund an order."""
        self.done.append(order)
        return "refunded"

    def reward(self, transcript: Transcript) -> Reward | float:
        return self.score(transcript)

    def score(self, transcript: Transcript) -> float:
        return float(self.done == [self.row["order"]])


class Lookups(Refunds):
    """The same with a tool that only reads."""

    @tool
    def get_weather(self, order: str) -> str:
        """Weather of an order."""
        self.done.append(order)
        return "rain"


class Finished(Refunds):
    """A call ends the episode, and nothing reads its text."""

    @tool
    def finish(self, code: str) -> Done:
        """End."""
        return Done("ended")


class Anything(Refunds):
    """Every episode is right."""

    def score(self, transcript: Transcript) -> float:
        return 1.0


class Careless(Refunds):
    """Every lane is right."""

    @tool
    def pay_back(self, order: str, lane: str) -> str:
        """Refund an order by a lane."""
        self.done.append(order)
        return "refunded"


def does(*names: str, **more: str) -> Policy:
    """A model that calls the tools with the row's order, sometimes wrongly.

    Its message is always the same.
    """

    def policy(row: Row, index: int) -> tuple[Sequence[Call], str | None]:
        order = row["order"] if index % 5 else "A-0"
        calls = [Call(name, {"order": order, **more}) for name in names if name != "finish"]
        return ([*calls, Call("finish", {"code": "K7"})], None) if "finish" in names else (calls, "All done.")

    return policy


def of_orders(make: type[Environment], *names: str, **more: str) -> Baseline:
    rows = [{"prompt": f"Refund order A-{number}.", "order": f"A-{number}"} for number in range(1, 14)]
    return sample_of(lambda: make({}), rows, does(*names, **more), 8)


@pytest.mark.parametrize(
    ("make", "names", "besides"),
    [
        (Refunds, ("refund",), "."),
        (Lookups, ("get_weather",), "."),
        (Finished, ("refund", "finish"), ", except for: last call dropped; call altered: finish, code."),
    ],
)
def test_a_task_that_is_judged_by_its_calls_passes(
    make: type[Environment], names: Sequence[str], besides: str
) -> None:
    baseline = of_orders(make, *names)
    mutants = found("scorer-mutants", make, baseline)
    assert mutants.verdict == "Pass"
    assert mutants.observed == f"The task is judged by its calls, and wrong calls are refused{besides}"
    guess = found("constant-guess", make, baseline)
    assert guess.verdict == "Pass"
    assert "On 13 rows the calls alone get the full score" in guess.observed


def test_a_judge_that_ignores_calls_as_well_fails() -> None:
    finding = found("scorer-mutants", Anything, of_orders(Anything, "refund"))
    assert finding.verdict == "Fail"
    assert "the last call may be missing" in finding.observed
    assert "any value of order of refund is accepted" in finding.observed
    assert "refund(" in finding.examples[0].text


def test_an_argument_that_nobody_judges_is_named() -> None:
    finding = found("scorer-mutants", Careless, of_orders(Careless, "pay_back", lane="fast"))
    assert finding.verdict == "Pass"
    assert "except for: call altered: pay_back, lane" in finding.observed


def test_a_number_of_many_digits_is_altered() -> None:
    text = "It is " + "7" * 5_000
    assert altered(text) != text


def test_examples_are_found_only_in_the_first_characters() -> None:
    shown = "\n\na: 1\nb: 2"
    assert examples_in("x" * 19_900 + shown)
    assert not examples_in("x" * 20_001 + shown)
