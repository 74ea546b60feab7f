"""Cases that seeded faults or clean tasks showed the preflight's checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from help_desk import PROMPT, Desk, desk_baseline, desk_model, desk_rows
from made_up_baselines import play_all, sample_of

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.checks import prompt_labels
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, Call
from headway_sandbox.environment import Environment, Transcript

Row = Mapping[str, Any]


def found(check: str, make: type[Environment], baseline: Baseline) -> Finding:
    """A check's finding about an environment, after its scripts were really played."""
    return BY_ID[check].judge(baseline, play_all(lambda: make({}), BY_ID[check].scripts(baseline)))


class AuditedDesk(Desk):
    """The first call returns the whole label, inside a text of its answer."""

    def case(self) -> dict[str, Any]:
        return {**super().case(), "audit": json.dumps(self.row["expected"])}


class DottedDesk(Desk):
    """The prompt's example has dots as values, and lacks a field that the prompt names elsewhere."""

    def prompt(self) -> str:
        example = '<answer>{"action": "..."}</answer>'
        return f"Look the case up. It has an action and a limit. Answer like this: {example}"


class KeywordDesk(Desk):
    """The reward counts words of the system message in the answer."""

    def reward(self, transcript: Transcript) -> float:
        words = ("work", "look", "repair", "case")
        return sum(word in transcript.answer.lower() for word in words) / len(words)


class NotedDesk(Desk):
    """The first call returns a text that begins like JSON but is not JSON."""

    def case(self) -> dict[str, Any]:
        return {**super().case(), "note": "{see the file", "list": "[1, 2]"}


class CurtDesk(Desk):
    """The prompt forbids words around the answer."""

    def prompt(self) -> str:
        return f"{PROMPT}\nAnswer with nothing but that."


def talkative(row: Row, index: int) -> tuple[Sequence[Call], str]:
    calls, answer = desk_model()(row, index)
    return calls, f"Sure! {answer}" if index % 2 else str(answer)


def test_a_label_within_a_text_of_a_tool_is_reported() -> None:
    finding = found("prompt-labels", AuditedDesk, desk_baseline(AuditedDesk, skill=0.3))
    assert finding.verdict == "Warn"
    assert "The first call, of `get_case`, returns every field" in finding.observed


def test_a_text_that_resembles_json_is_not_a_label() -> None:
    assert found("prompt-labels", NotedDesk, desk_baseline(NotedDesk, skill=0.3)).verdict == "Pass"


def test_words_may_be_refused_where_the_prompt_says_so() -> None:
    baseline = sample_of(lambda: CurtDesk({}), desk_rows(13), talkative, 8)
    assert found("scorer-mutants", CurtDesk, baseline).verdict == "Pass"


def test_dots_as_a_value_leave_no_field_out() -> None:
    finding = found("prompt-labels", DottedDesk, desk_baseline(DottedDesk, skill=0.3))
    assert finding.verdict in ("Warn", "Fail")
    assert "the example in the prompt omits it" in finding.observed


@pytest.mark.parametrize(
    ("shown", "elided"),
    [
        ('<a>{"b": "...", "c": "..."}</a>', False),
        ("<a>{'b': '...'}</a>", False),
        ("<a>b: ...\nc: ...</a>", False),
        ('<a>{"b": 1, ...}</a>', True),
        ('<a>{"b": "...", ...}</a>', True),
    ],
)
def test_an_example_may_leave_fields_out_with_dots(shown: str, elided: bool) -> None:
    assert prompt_labels._elided(shown) is elided


def test_the_prompt_repeated_has_its_system_message() -> None:
    finding = found("constant-guess", KeywordDesk, desk_baseline(KeywordDesk, skill=0.3))
    assert finding.verdict == "Fail"
    assert "prompt repeated" in finding.observed
