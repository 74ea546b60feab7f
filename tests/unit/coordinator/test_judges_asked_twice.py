"""The preflight asks the judges some questions of baseline episodes two more times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import judge_rig
import pytest
from endpoint_service import fails, says, serving

from headway_analysis.billing.segments import total
from headway_analysis.preflight.evidence import JudgeQuestion
from headway_api.artifacts import Layout
from headway_api.records import Judgement, UsageClass
from headway_api.sandbox_api import Question
from headway_api.store import FileStore
from headway_coordinator.judges import judge as asking
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.preflight import evidence
from headway_coordinator.preflight.asking import Asker
from headway_coordinator.preflight.evidence import Notes
from headway_coordinator.preflight.judges_bill import JudgesBill, Spent


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "backoff", lambda tries: 0.0)


def asked(text: str = "Grade this.", judge: str = "style") -> JudgeQuestion:
    return JudgeQuestion(judge, [{"role": "user", "content": text}])


class Books:
    """A ledger that records what was billed, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tokens = 0

    async def bill(self, whose: str, found: Sequence[Judgement]) -> None:
        self.names.append(whose)
        self.tokens += sum(one.prompt_tokens + one.sampled_tokens for one in found)


async def test_a_question_answered_before_is_asked_again(tmp_path: Path) -> None:
    books = Books()
    async with (
        serving(says("a"), says("b"), says("c"), says("d")) as service,
        judge_rig.judges(tmp_path, judge_rig.spec(service.url)) as judges,
    ):
        put = judge_rig.question(of=judges.by_name["style"].spec)
        assert await judges.by_name["style"].ask(put, lambda judgement: None) == "a"
        [twice] = await Asker(judges, books.bill, "twice").ask([asked()])
        assert await judges.by_name["style"].ask(put, lambda judgement: None) == "a", "it stays kept"
    assert (twice.answers, twice.error) == (("b", "c"), None)
    assert len(service.bodies) == 3
    assert service.bodies[1] == service.bodies[2] == service.bodies[0]
    assert books.names == ["twice-0-0-0", "twice-0-1-0"]
    assert books.tokens == 50


async def test_the_preflight_waits_for_a_judge_that_is_down(tmp_path: Path) -> None:
    books, waited = Books(), []
    async with (
        serving(*[fails(500)] * asking.TRIES, says("ok"), says("b"), says("c")) as service,
        judge_rig.judges(tmp_path, judge_rig.spec(service.url)) as judges,
    ):
        asker = Asker(judges, books.bill, "twice", lambda: waited.extend(asker.waiting.values()))
        [twice] = await asker.ask([asked()])
    assert twice.answers == ("b", "c")
    assert "judge style" in waited[0]
    assert asker.waiting == {}
    assert books.names == ["twice-0-0-0", "twice-0-0-1", "twice-0-1-0"]


async def test_a_question_without_an_answer_has_a_reason(tmp_path: Path) -> None:
    books = Books()
    async with (
        serving(says("")) as service,
        judge_rig.judges(tmp_path, judge_rig.spec(service.url)) as judges,
    ):
        twice = await Asker(judges, books.bill, "twice").ask([asked(), asked(judge="another")])
    assert [one.answers for one in twice] == [(), ()]
    assert "its answer is empty" in str(twice[0].error)
    assert twice[1].error == "spec.judges has no judge another"
    assert books.tokens == 25 * len(service.bodies) > 0, "its answer is billed all the same"


async def test_a_successor_bills_the_stored_judgements(tmp_path: Path) -> None:
    store, layout = FileStore(), Layout(f"file://{tmp_path}", "ns", "job", "uid")
    judgement = Judgement(judge="style", question="0" * 64, prompt_tokens=20, sampled_tokens=5)
    for name in ("a", "b"):
        spent = Spent(whose=name, at=1_700_000_000.0, judgements=[judgement])
        store.put_new(layout.preflight_judgement(name), spent.model_dump_json().encode())
    ledger = Ledger(store, layout)
    ledger.judgements("a", [judgement], 1_700_000_000.0)
    for _ in range(2):
        await JudgesBill(store, layout, ledger).restore()
    assert total(ledger.days)[UsageClass.JUDGE_PROMPT] == 40
    again = Ledger(store, layout)
    again.load()
    assert again.days == ledger.days


def test_one_question_to_each_judge_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LONGEST_QUESTION", 200)
    notes = Notes()
    for number, (judge, text) in enumerate([("a", "x" * 300), ("a", "1"), ("a", "2"), ("b", "3")]):
        one = {"id": number, "name": judge, "messages": [{"role": "user", "content": text}]}
        notes.asked([Question.model_validate(one)])
    kept = notes.answers.questions
    assert [(put.judge, put.messages[0]["content"]) for put in kept] == [("a", "1"), ("b", "3")]
