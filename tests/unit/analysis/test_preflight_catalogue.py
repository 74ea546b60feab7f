"""Every check is defined and documented, has bounded scripts, and tolerates bad evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from help_desk import desk_baseline
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_baselines import a_baseline, a_sample, an_episode, of_values

from headway_analysis.preflight import page
from headway_analysis.preflight.catalogue import CHECKS
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Finding, Verdict
from headway_analysis.preflight.evidence import PlayedScript, Probe, Script, ToolResult
from headway_analysis.preflight.run import findings, scripts_of
from headway_api.crd import definitions

ROOT = Path(__file__).parents[3]
WORDS = 25
MAX_SCRIPTS = 250
IDS = [
    "deterministic",
    "isolated",
    "foothold",
    "reward-range",
    "reward-variance",
    "scorer-agrees",
    "judge-varies",
    "constant-guess",
    "scorer-mutants",
    "prompt-labels",
    "context-fits",
    "tools-like-production",
    "tool-calls-parse",
    "splits",
    "throughput",
]
checks = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)


def texts(check: Check) -> Iterator[str]:
    yield from (check.meaning, check.number, check.threshold, check.reason, check.source, check.advice)


def test_every_check_is_defined_once_in_its_order() -> None:
    assert [check.id for check in CHECKS] == IDS


@checks
def test_a_checks_texts_are_short_sentences(check: Check) -> None:
    for text in texts(check):
        assert text
        for sentence in re.split(r"(?<=[.:;])\s", text):
            assert len(sentence.split()) <= WORDS, sentence


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / page.PAGE).read_text() == page.page(), "run make preflight-page"


def spec_fields() -> set[str]:
    """Paths of the fields of a training job's spec."""

    def below(block: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, field in block.get("properties", {}).items():
            yield f"{path}.{name}"
            yield from below(field, f"{path}.{name}")

    [crd] = [each for each in definitions() if each["spec"]["names"]["kind"] == "RLTrainingJob"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(below(schema["properties"]["spec"], "spec"))


def test_fields_to_change_exist_in_the_spec() -> None:
    folder = ROOT / "analysis/headway_analysis/preflight"
    texts = [path.read_text() for path in folder.rglob("*.py")]
    named = {path for text in texts for path in re.findall(r"\bspec(?:\.[a-z][A-Za-z]*)+", text)}
    assert len(named) > 10
    assert named - spec_fields() == set()


def test_scripts_are_bounded_and_follow_existing_scripts() -> None:
    scripts = scripts_of(desk_baseline(rows=60, size=8))
    assert len(scripts) <= MAX_SCRIPTS
    labels = {(script.check, script.label) for script in scripts}
    assert len(labels) == len(scripts)
    assert all(script.after is None or (script.check, script.after) in labels for script in scripts)


def test_scripts_and_findings_are_functions_of_the_evidence() -> None:
    assert scripts_of(desk_baseline()) == scripts_of(desk_baseline())
    assert findings(desk_baseline(), []) == findings(desk_baseline(), [])


@checks
def test_a_check_without_evidence_is_unknown(check: Check) -> None:
    baseline = a_baseline([])
    empty = replace(baseline, facts=replace(baseline.facts, rows=[]))
    assert list(check.scripts(empty)) == []
    assert check.judge(empty, ()).verdict == "Unknown"


def holds(finding: Finding, check: Check) -> None:
    """Check what must be true of every finding."""
    assert finding.check == check.id
    assert finding.verdict in get_args(Verdict)
    assert finding.observed
    assert len(finding.examples) <= MAX_EXAMPLES
    if finding.verdict in ("Fail", "Warn"):
        assert finding.advice
    if finding.low is not None and finding.high is not None and finding.value is not None:
        assert finding.low <= finding.value <= finding.high


ODD = st.sampled_from(
    ["", "{", "<answer>", "<answer></answer>", "null", "[]", "é" * 50, "a: b", "\x00", "{}" * 300]
)
NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e6])
CELLS = st.recursive(
    ODD | st.none() | st.integers() | st.booleans(),
    lambda inner: st.lists(inner) | st.dictionaries(ODD, inner),
    max_leaves=4,
)
ROWS = st.dictionaries(st.sampled_from(["prompt", "expected", "id", "answer", "x"]), CELLS, max_size=4)


@st.composite
def baselines(draw: st.DrawFn) -> Any:
    """Baselines with strange rows, conversations and numbers."""
    count = draw(st.sampled_from([0, 3, 17]))
    sampled = []
    for number in range(count):
        role = st.sampled_from(["user", "assistant", "tool", "system"])
        messages = draw(st.lists(st.fixed_dictionaries({"role": role, "content": ODD}), max_size=4))
        reward = draw(NUMBERS | st.none())
        episode = an_episode(
            messages, group=number // 4, index=number % 4, reward=reward, score=draw(NUMBERS), error=draw(ODD)
        )
        results = [ToolResult(draw(ODD), {"a": draw(CELLS)}, draw(ODD), 0.1, draw(st.booleans()))]
        tools = [{"type": "function", "function": {"name": draw(ODD), "parameters": {"type": "object"}}}]
        sampled.append(a_sample(episode, draw(ROWS), results=results, tools=tools))
    facts = {"rows": draw(st.lists(ROWS, max_size=5)), "validation": draw(st.lists(ROWS, max_size=5))}
    contract = draw(
        st.none() | st.sampled_from([{"paths": {"/a": None, "/b": {"get": {}}}}, {"tools": [1, {}]}])
    )
    return a_baseline(sampled, group_size=4, contract=contract, **facts)


@checks
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_strange_evidence_breaks_no_check(check: Check, data: st.DataObject) -> None:
    baseline = data.draw(baselines())
    played = [
        PlayedScript(
            script,
            messages=[{"role": "user", "content": data.draw(ODD)}],
            results=[ToolResult("get", {}, data.draw(ODD), 0.0)],
            reward=data.draw(NUMBERS | st.none() | st.just(float("nan"))),
            score=data.draw(NUMBERS | st.none()),
            error=data.draw(st.none() | ODD),
        )
        for script in check.scripts(baseline)[:20]
    ]
    holds(check.judge(baseline, played), check)


@checks
def test_a_checks_finding_is_complete_with_much_evidence(check: Check) -> None:
    baseline = replace(
        of_values([[(1.0, 0.0), (0.0, 1.0)] * 4] * 13), probes=[Probe("DNS", "10.0.0.10", True, 0.5)]
    )
    holds(check.judge(baseline, ()), check)


@checks
def test_a_check_sees_no_scripts_of_other_checks(check: Check) -> None:
    script = Script("another", "first: 0", {}, 0)
    seen: list[int] = []

    def judge(baseline: object, played: Any) -> Finding:
        seen.append(len(played))
        return Finding(check.id, "Pass", "seen")

    findings(desk_baseline(rows=2), [PlayedScript(script)], checks=[replace(check, judge=judge)])
    assert seen == [0]
