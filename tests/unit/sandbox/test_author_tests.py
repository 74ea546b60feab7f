"""What Headway offers an author's own tests: episodes in fresh processes, baselines and reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tested_environment import Desk, clerk, row

from headway_analysis.preflight.definition import Example, Finding
from headway_analysis.preflight.evidence import Baseline, Facts, Script
from headway_api.records import Outcome
from headway_sandbox.testing import (
    Call,
    Malformed,
    Recorded,
    Report,
    Sandboxes,
    Seen,
    check_environment,
    examine,
)
from headway_sandbox.testing import episode as played_episode
from headway_sandbox.testing.playing import Player, Turns, about, baseline, of_recorded
from headway_sandbox.testing.report import several

ROOT = Path(__file__).resolve().parents[3]
OF = Sandboxes("tested_environment:Desk", folders=[ROOT / "tests/support"], packages=False)
ROWS = [row(number) for number in range(6)]
LOOK = Call("look", {"key": "k1"})


def episode(*calls: Call, answer: str | None = None, **more: Any) -> Any:
    return played_episode(OF, ROWS[1], calls, answer, **more)


def test_an_episode_is_played_until_it_is_judged() -> None:
    found = episode(LOOK, answer="1")
    assert (found.error, found.reward, found.score) == (None, 1.0, 1.0)
    assert [result.content for result in found.results] == ["k1 is 1"]
    assert found.messages[0]["content"] == "How many is k1?"
    assert found.tools[0]["function"]["name"] == "look"
    assert found.metrics == {"calls": 1.0}


def test_an_episode_without_an_answer_is_judged_too() -> None:
    found = episode(LOOK, truncated=True)
    assert (found.reward, found.score) == (0.0, 0.0)


def test_each_episode_has_a_process_of_its_own() -> None:
    first, second = episode(Call("process", {})), episode(Call("process", {}))
    assert first.results[0].content != second.results[0].content
    assert first.results[0].content != str(os.getpid())


def test_each_episode_has_its_own_folder_which_is_deleted() -> None:
    first, second = episode(Call("write", {})), episode(Call("write", {}))
    assert first.results[0].content != second.results[0].content
    assert first.results[0].content.startswith("new ")
    assert second.results[0].content.startswith("new ")
    assert not Path(first.results[0].content.removeprefix("new ")).exists()


def test_a_tool_that_ends_the_episode_ends_the_script() -> None:
    found = episode(Call("leave", {}), LOOK, answer="1")
    assert [result.name for result in found.results] == ["leave"]
    assert found.script.answer is None


def test_a_class_of_the_test_module_can_be_played() -> None:
    found = played_episode(Desk, ROWS[2], [LOOK], "2")
    assert (found.error, found.score) == (None, 1.0)


def test_the_agents_variables_do_not_reach_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AUTHOR", "s")
    assert "SECRET_OF_THE_AUTHOR" not in episode(Call("variables", {})).results[0].content


def a_baseline(model: Any, episodes: int = 4, **facts: Any) -> Baseline:
    return baseline(Player(OF, 2), model, Facts(ROWS, **{"group_size": 2} | facts), episodes)


def test_a_baseline_is_the_same_for_the_same_seed() -> None:
    def seen(measured: Baseline) -> list[Any]:
        return [(one.row, one.environment_seed, one.record.messages) for one in measured.sampled]

    assert seen(a_baseline(clerk)) == seen(a_baseline(clerk))
    assert seen(a_baseline(clerk)) != seen(a_baseline(clerk, seed=1))


def test_a_group_is_of_one_row_and_one_seed() -> None:
    sampled = a_baseline(clerk, 4).sampled
    assert [one.record.episode_id for one in sampled] == ["t0-0-0-0", "t0-0-1-0", "t0-2-0-0", "t0-2-1-0"]
    assert sampled[0].row == sampled[1].row != sampled[2].row == sampled[3].row
    assert sampled[0].environment_seed == sampled[1].environment_seed != sampled[2].environment_seed
    assert sampled[0].group.episodes == [sampled[0].record, sampled[1].record]


def talks(seen: Seen) -> Turns:
    """An agent that calls `look` without end."""
    while True:
        yield LOOK


def test_turns_end_at_the_jobs_maximum() -> None:
    [one, _] = a_baseline(talks, 2, max_turns=3).sampled
    assert one.record.outcome is Outcome.TRUNCATED
    assert len(one.results) == len(one.record.turns) == 3


def test_the_context_ends_an_episode_too() -> None:
    [one, _] = a_baseline(talks, 2, max_turns=None, context_length=300).sampled
    assert one.record.outcome is Outcome.TRUNCATED
    assert one.record.turns[-1].prompt_tokens < 300


def test_an_answer_is_cut_at_the_maximum_of_tokens() -> None:
    [one, _] = a_baseline(lambda seen: "x" * 100, 2, max_tokens=10).sampled
    assert one.record.outcome is Outcome.TRUNCATED
    assert one.record.turns[-1].finish_reason == "length"
    assert one.record.messages[-1]["content"] == "x" * 40


def test_a_malformed_call_is_reported_separately() -> None:
    [one, _] = a_baseline(lambda seen: Malformed("<call>"), 2).sampled
    assert one.malformed == ["<call>"]
    assert one.record.turns[0].malformed_tool_calls == 1


def test_recorded_episodes_are_replayed() -> None:
    measured = a_baseline(clerk, 4)
    recorded = [Recorded(one.row, one.record.messages) for one in measured.sampled]
    again = of_recorded(Player(OF, 2), recorded, measured.facts)
    assert sorted(str(one.record.messages) for one in again.sampled) == sorted(
        str(one.record.messages) for one in measured.sampled
    )
    assert {one.record.reward for one in again.sampled} == {one.record.reward for one in measured.sampled}


def test_a_record_of_an_unknown_row_is_refused() -> None:
    with pytest.raises(ValueError, match="not in `rows`"):
        of_recorded(Player(OF, 1), [Recorded({"key": "other"}, [])], Facts(ROWS))


def test_scripts_are_played_after_those_that_they_name() -> None:
    scripts = [
        Script("c", "last", ROWS[0], 0, after="middle"),
        Script("c", "middle", ROWS[0], 0, after="first"),
        Script("c", "first", ROWS[0], 0),
    ]
    player, order = Player(OF, 3), []
    play = player.play
    player.play = lambda script, agent=None: (order.append(script.label), play(script, agent))[1]  # type: ignore[method-assign]
    assert [one.script.label for one in player.all(scripts)] == ["last", "middle", "first"]
    assert order == ["first", "middle", "last"]


def test_scripts_in_a_circle_are_refused() -> None:
    with pytest.raises(ValueError, match="in a circle"):
        Player(OF, 1).all([Script("c", "a", ROWS[0], 0, after="a")])


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ValueError, match="checks: foot-hold: these checks do not exist"):
        examine(OF, ROWS, clerk, checks={"foot-hold"})


def test_a_call_without_agent_or_records_is_refused() -> None:
    with pytest.raises(ValueError, match="give an agent or recorded episodes"):
        examine(OF, ROWS)


def test_a_faulty_environment_fails_with_method_and_row() -> None:
    rows = [*ROWS[:3], {"key": "k3", "number": "none", "break": "reset"}]
    with pytest.raises(AssertionError, match=r"Fault in row 3.*reset raised RuntimeError: on purpose"):
        check_environment(OF, rows, clerk, facts=Facts(rows, group_size=2), episodes=8, checks=())


def test_an_environment_that_cannot_be_imported_is_one_error() -> None:
    with pytest.raises(AssertionError, match="tested_environment:Desks cannot be imported"):
        check_environment(Sandboxes("tested_environment:Desks", folders=OF.folders), ROWS, clerk)


def test_a_baseline_stops_early_if_every_episode_fails() -> None:
    """Otherwise an environment that hangs would cost the timeout of every episode."""
    rows = [{"key": f"k{number}", "break": "reset"} for number in range(20)]
    measured = baseline(Player(OF, 2), clerk, Facts(rows, group_size=2), 20)
    assert (len(measured.sampled), measured.wanted) == (8, 20)


def test_a_failing_first_row_does_not_stop_a_baseline() -> None:
    """The first episodes may all play the same row."""
    rows = [{"key": "k0", "break": "reset"}, *(row(number) for number in range(1, 3))]
    measured = baseline(Player(OF, 2), clerk, Facts(rows, group_size=8), 24)
    assert len(measured.sampled) == 24
    assert len(measured.scored) == 16


def test_a_report_lists_the_worst_first_with_what_to_change() -> None:
    findings = [
        Finding("a", "Pass", "fine"),
        Finding("b", "Warn", "it is 3 of 10", advice="lower it", field="spec.x"),
        Finding("c", "Unknown", "too few", needs=40),
        Finding("d", "Fail", "it leaks", examples=(Example("row 1", "one\ntwo"),)),
    ]
    report = Report(Baseline(Facts([])), [], findings)
    assert str(report).splitlines() == [
        "Fail d: it leaks",
        "    row 1:",
        "        one",
        "        two",
        "Warn b: it is 3 of 10",
        "    change: lower it (spec.x)",
        "Unknown c: too few",
        "    40 episodes would be enough to tell",
    ]
    assert report.named("Fail", "Warn") == ["b", "d"]
    assert "leaks" not in report.text(without={"d"})
    with pytest.raises(KeyError, match="no check e; there were: a, b, c, d"):
        report.of("e")


def test_a_list_of_many_places_is_shortened_with_a_count() -> None:
    assert several(["a", "a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert about("12345") == 2


def test_the_quickstarts_own_tests_pass() -> None:
    """They run with the command that its author uses."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_environment.py"]
    done = subprocess.run(
        command, cwd=ROOT / "examples/sop-quickstart", capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
