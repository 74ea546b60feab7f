"""How far a judge's answers vary: which questions are asked again, and the finding about both answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from made_up_baselines import a_baseline, a_sample, an_episode

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.checks.judge_varies import ENOUGH, QUESTIONS, questions
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import AskedTwice, Baseline, JudgeQuestion

ID = "judge-varies"


def question(text: Any = "Grade this.", judge: str = "style", schema: Any = None) -> JudgeQuestion:
    return JudgeQuestion(judge, [{"role": "user", "content": str(text)}], schema)


def found(*answers: Sequence[Any], judge: str = "style", **more: Any) -> Finding:
    """The finding about pairs of answers, each pair to a question of its own."""
    asked = [AskedTwice(question(at, judge), tuple(pair)) for at, pair in enumerate(answers)]
    return of([*asked, *more.get("others", ())])


def of(asked: Sequence[AskedTwice], judged: bool = True) -> Finding:
    samples = [a_sample(an_episode(group=at)) for at in range(40)]
    baseline = a_baseline(samples, judged=judged)
    return BY_ID[ID].judge(replace(baseline, asked_twice=asked), ())


def baseline_of(*asked: Sequence[JudgeQuestion], size: int = 2) -> Baseline:
    """A baseline with an episode for each of these judgements, in groups."""
    return a_baseline(
        a_sample(an_episode(group=at // size, index=at % size), questions=each)
        for at, each in enumerate(asked)
    )


def test_a_steady_judge_passes() -> None:
    finding = found(*[({"grade": 3, "why": "good"}, {"why": "good", "grade": 3.0})] * QUESTIONS)
    assert (finding.verdict, finding.value, finding.threshold) == ("Pass", 0.0, 0.2)
    assert dict(finding.numbers)["style: mean difference of grade"] == 0.0


def test_a_judge_that_varies_is_a_warning_with_evidence() -> None:
    finding = found(*[({"grade": 3}, {"grade": 5})] * 4, *[({"grade": 3}, {"grade": 3})] * 16)
    assert (finding.verdict, finding.value) == ("Warn", 0.2)
    assert finding.field == "spec.judges[style]"
    assert dict(finding.numbers)["style: mean difference of grade"] == pytest.approx(0.4)
    assert "grade by 0.4" in finding.observed
    assert len(finding.examples) == 2
    assert 'first: {"grade": 3}\nsecond: {"grade": 5}' in finding.examples[0].text


def test_an_occasional_answer_raises_no_alarm() -> None:
    assert found(*[("yes", "no")] * 3, *[("yes", "yes")] * 17).verdict == "Pass"
    assert found(("yes", "no"), *[("yes", "yes")] * 3).verdict == "Unknown", "surely is not over 5 %"


def test_case_and_spacing_of_a_text_do_not_count() -> None:
    assert found(*[("Good  answer", " good answer\n")] * QUESTIONS).value == 0.0


def test_a_number_that_is_text_has_a_mean_difference() -> None:
    finding = found(*[("7", "7.5")] * QUESTIONS)
    assert dict(finding.numbers)["style: mean difference of text"] == 0.5


def test_a_boolean_is_not_compared_as_a_number() -> None:
    finding = found(*[({"good": True}, {"good": False})] * QUESTIONS)
    assert finding.value == 1.0
    assert not any("mean difference" in name for name, _ in finding.numbers)


def test_a_missing_field_counts_as_different() -> None:
    assert found(*[({"a": 1, "b": [1, {"c": 2}]}, {"a": 1, "b": [1]})] * QUESTIONS).value == 1.0


def test_the_worst_of_several_judges_decides() -> None:
    others = [AskedTwice(question(at, "other"), ("a", "b")) for at in range(QUESTIONS)]
    finding = found(*[("yes", "yes")] * QUESTIONS, others=others)
    assert (finding.verdict, finding.value, finding.field) == ("Warn", 1.0, "spec.judges[other]")
    assert dict(finding.numbers)["style: share that differ"] == 0.0


def test_few_questions_of_one_judge_are_too_few() -> None:
    others = [AskedTwice(question(at, "other"), ("a", "a")) for at in range(4)]
    finding = found(*[("yes", "yes")] * QUESTIONS, others=others)
    assert (finding.verdict, finding.needs) == ("Unknown", 10 * ENOUGH)
    assert "judge other" in finding.observed


def test_without_a_judge_nothing_is_known() -> None:
    assert of([], judged=False).observed == "No judge was asked: spec.judges is empty."
    assert of([]).observed == "No baseline episode asked a judge."
    assert {of([], judged).verdict for judged in (True, False)} == {"Unknown"}


def test_a_judge_that_did_not_answer_is_named() -> None:
    finding = of([AskedTwice(question(), ("yes",), "judge style: busy")])
    assert (finding.verdict, finding.field) == ("Unknown", "spec.judges[style]")
    assert "judge style: busy" in finding.observed
    some = found(*[("yes", "yes")] * QUESTIONS, others=[AskedTwice(question("lost"), (), "busy")])
    assert some.verdict == "Pass"
    assert "1 questions were not answered twice" in some.observed


def test_each_question_is_asked_again_once_up_to_a_limit() -> None:
    asked = [[question(at), question(at, "other")] for at in range(30)]
    chosen = questions(baseline_of(*asked, *asked))
    assert len(chosen) == 2 * QUESTIONS
    texts = [(one.judge, one.messages[0]["content"]) for one in chosen]
    assert len(set(texts)) == len(texts)


def test_questions_come_from_as_many_rows_as_possible() -> None:
    asked = [[question(f"{row}/{index}")] for row in range(12) for index in range(4)]
    chosen = [one.messages[0]["content"] for one in questions(baseline_of(*asked, size=4))]
    assert {text.split("/")[0] for text in chosen} == {str(row) for row in range(12)}
    assert len(chosen) == QUESTIONS


def test_strange_answers_break_nothing() -> None:
    deep: Any = "end"
    for _ in range(15):
        deep = [deep, {"a": deep}] if not isinstance(deep, list) else [deep[0]]
    odd = [None, "", [], {}, True, "NaN", "1e999", 10**400, deep, "9" * 5000, {"a": None}, [[]] * 500]
    finding = found(*[(one, other) for one in odd for other in odd])
    assert finding.verdict == "Warn"
    assert finding.value is not None
    assert finding.value < 1.0
