"""Checks of the environment: it is deterministic, keeps nothing between episodes, and equals production's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from help_desk import (
    ClockedDesk,
    CountingDesk,
    Desk,
    OrderedDesk,
    PickyDesk,
    RememberingDesk,
    UnseededDesk,
    desk_baseline,
    desk_rows,
    written,
)
from made_up_baselines import a_baseline, a_sample, an_episode, play_all, sample_of

from headway_analysis.preflight.catalogue import BY_ID
from headway_analysis.preflight.checks import deterministic, isolated
from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.evidence import Baseline, Call, PlayedScript, Probe
from headway_sandbox.environment import Environment, Observation, Reward, ToolError, Transcript, tool

Row = Mapping[str, Any]

NOWHERE = Probe("metadata address", "169.254.169.254", reached=False, seconds_after_start=0.1)


def found(check: str, make: type[Environment] = Desk, baseline: Baseline | None = None) -> Finding:
    """A check's finding about an environment, after its scripts were really played."""
    given = desk_baseline(make) if baseline is None else baseline
    scripts = BY_ID[check].scripts(given)
    return BY_ID[check].judge(given, play_all(lambda: make({}), scripts))


def test_an_environment_that_repeats_itself_is_deterministic() -> None:
    finding = found("deterministic")
    assert (finding.verdict, finding.value) == ("Pass", 0.0)
    assert finding.high is not None
    assert 0.4 < finding.high < 0.5  # six pairs show no more


def test_a_tool_that_tells_the_time_is_named_with_a_diff() -> None:
    finding = found("deterministic", ClockedDesk)
    assert finding.verdict == "Fail"
    assert "get_case" in finding.observed
    assert "get_limit" not in finding.observed
    assert "--- first run" in finding.examples[0].text
    assert finding.examples[0].episode_id is not None


def test_a_prompt_that_is_drawn_without_its_seed_is_named() -> None:
    finding = found("deterministic", UnseededDesk)
    assert finding.verdict == "Fail"
    assert "`reset`" in finding.observed


def test_a_reading_tool_that_depends_on_the_order_is_named() -> None:
    finding = found("deterministic", OrderedDesk)
    assert finding.verdict == "Fail"
    assert "get_case" in finding.observed
    assert "another order" in finding.examples[0].title


def test_the_baselines_observations_are_compared_too() -> None:
    baseline = desk_baseline()
    old = [replace(result, content='{"cents": 1}') for result in baseline.sampled[0].results]
    changed = replace(baseline.sampled[0], results=old)
    finding = found("deterministic", Desk, replace(baseline, sampled=[changed, *baseline.sampled[1:]]))
    assert finding.verdict == "Fail"
    assert "--- baseline" in finding.examples[0].text


def test_without_a_replay_determinism_is_unknown() -> None:
    baseline = desk_baseline()
    lost = [PlayedScript(script, error="no sandbox") for script in deterministic.scripts(baseline)]
    finding = deterministic.judge(baseline, lost)
    assert (finding.verdict, finding.needs) == ("Unknown", 1)


@pytest.mark.parametrize("name", ["get_case", "lookup_order", "search-items", "list_notes"])
def test_a_tool_that_reads_is_known_by_its_name(name: str) -> None:
    assert deterministic.reads(name)


@pytest.mark.parametrize("name", ["send_mail", "get_next_page", "create_ticket", "checkout_now"])
def test_the_order_of_tools_that_may_write_is_not_reversed(name: str) -> None:
    assert not deterministic.reads(name)


def test_an_environment_without_shared_state_is_isolated() -> None:
    finding = found("isolated", baseline=replace(desk_baseline(), probes=[NOWHERE]))
    assert finding.verdict == "Pass"
    assert "No trace of 2 episodes" in finding.observed
    assert "1 destinations were tried, none reached" in finding.observed


def test_a_network_without_any_probes_answer_is_unknown() -> None:
    finding = found("isolated")
    assert finding.verdict == "Unknown"
    assert "No trace of 2 episodes was found in the episode after each" in finding.observed
    assert "No probe of the network answered" in finding.observed


def test_a_counter_that_outlives_its_episode_is_found() -> None:
    finding = found("isolated", CountingDesk)
    assert finding.verdict == "Fail"
    assert "ticket" in finding.examples[0].text


def test_a_canary_of_another_episode_is_found() -> None:
    finding = found("isolated", RememberingDesk)
    assert finding.verdict == "Fail"
    assert "canary" in finding.examples[0].text


class RefundingDesk(Desk):
    """A refund is visible to every later episode."""

    refunded: set[str] = set()  # noqa: RUF012

    @tool
    def refund(self, case_id: str, cents: int) -> str:
        """Pay."""
        before = case_id in self.refunded
        self.refunded.add(case_id)
        return "refused: paid before" if before else "paid"


def refunder(row: Row, index: int) -> tuple[Sequence[Call], str]:
    return (Call("refund", {"case_id": row["case_id"], "cents": 5}),), written(row["expected"])


def test_state_that_the_baseline_left_behind_is_found() -> None:
    RefundingDesk.refunded.clear()
    baseline = sample_of(lambda: RefundingDesk({}), desk_rows(13), refunder, 1)
    finding = found("isolated", RefundingDesk, baseline)
    assert finding.verdict == "Fail"
    assert finding.examples[0].title == "changed since the baseline"
    assert "refused: paid before" in finding.examples[0].text


def test_a_tool_that_needs_a_number_is_given_one_with_the_canary() -> None:
    baseline = desk_baseline(RefundingDesk)
    [calls] = [each.calls for each in BY_ID["isolated"].scripts(baseline) if each.label == "canary: 0"]
    [refund] = [call for call in calls if call.name == "refund"]
    assert str(refund.arguments["case_id"]).startswith("canary")
    assert isinstance(refund.arguments["cents"], int)


def test_a_limit_of_calls_is_not_a_dependence_on_order() -> None:
    class Patient(Desk):
        def reset(self, row: Row, seed: int) -> Observation:
            self.left = 2
            return super().reset(row, seed)

        def case(self) -> dict[str, Any]:
            self.left -= 1
            if self.left < 1:
                raise ToolError("no calls left")
            return super().case()

    assert found("deterministic", Patient).verdict == "Pass"


def test_a_clock_is_not_a_trace_of_another_episode() -> None:
    baseline = replace(desk_baseline(ClockedDesk), probes=[NOWHERE])
    assert found("isolated", ClockedDesk, baseline).verdict == "Pass"


def test_a_destination_that_was_reached_is_named() -> None:
    reached = replace(NOWHERE, reached=True)
    baseline = replace(desk_baseline(), probes=[NOWHERE, reached])
    finding = found("isolated", Desk, baseline)
    assert finding.verdict == "Fail"
    assert "NetworkPolicyNotEnforced" in finding.observed
    assert "169.254.169.254" in finding.observed


def test_probes_alone_are_enough_to_pass() -> None:
    baseline = replace(desk_baseline(), probes=[NOWHERE])
    assert isolated.judge(baseline, ()).verdict == "Pass"
    assert isolated.judge(desk_baseline(), ()).verdict == "Unknown"


def test_splits_that_share_nothing_pass() -> None:
    baseline = desk_baseline()
    facts = replace(baseline.facts, validation=desk_rows(20, 7), test=desk_rows(20, 8))
    assert found("splits", Desk, replace(baseline, facts=facts)).verdict == "Pass"


def test_rows_that_two_splits_share_are_counted() -> None:
    baseline = desk_baseline()
    copied = [{**row, "prompt": row["prompt"].upper()} for row in baseline.facts.rows[:3]]
    facts = replace(baseline.facts, validation=[*desk_rows(20, 7), *copied])
    finding = found("splits", Desk, replace(baseline, facts=facts))
    assert finding.verdict == "Fail"
    assert "3 of 23 validation rows are train rows too" in finding.observed


def test_shared_rows_that_are_allowed_are_a_warning() -> None:
    baseline = desk_baseline()
    facts = replace(baseline.facts, validation=baseline.facts.rows, overlap_allowed=True)
    assert found("splits", Desk, replace(baseline, facts=facts)).verdict == "Warn"


def test_prompts_that_differ_in_a_minus_sign_are_not_copies() -> None:
    baseline = desk_baseline()
    rows, others = ([{"prompt": f"{sign}{n} * 4 = ?"} for n in range(3, 33)] for sign in ("", "-"))
    facts = replace(baseline.facts, rows=rows, validation=others)
    assert BY_ID["splits"].judge(replace(baseline, facts=facts), ()).verdict == "Pass"


def test_a_number_of_the_row_does_not_hide_a_copy() -> None:
    baseline = desk_baseline()
    rows = [{"id": number, **row} for number, row in enumerate(baseline.facts.rows)]
    copied = [{**row, "id": 1000 + number} for number, row in enumerate(rows[:2])]
    finding = found("splits", Desk, replace(baseline, facts=replace(baseline.facts, rows=rows, test=copied)))
    assert "2 of 2 test rows are train rows too" in finding.observed


def test_rows_that_differ_only_by_a_number_are_not_copies() -> None:
    baseline = desk_baseline()
    rows = [{"prompt": "Handle the case.", "id": number} for number in range(40)]
    facts = replace(baseline.facts, rows=rows[:20], validation=rows[20:])
    finding = BY_ID["splits"].judge(replace(baseline, facts=facts), ())
    assert finding.verdict == "Pass"


def test_repeated_rows_are_a_warning() -> None:
    baseline = desk_baseline()
    facts = replace(baseline.facts, rows=[*baseline.facts.rows, *baseline.facts.rows[:4]])
    finding = found("splits", Desk, replace(baseline, facts=facts))
    assert finding.verdict == "Warn"
    assert "4 of 17 train rows repeat an earlier one" in finding.observed


def test_a_column_that_a_split_lacks_is_named() -> None:
    baseline = desk_baseline()
    bare = [{"prompt": row["prompt"], "case_id": row["case_id"]} for row in desk_rows(9, 7)]
    finding = found("splits", Desk, replace(baseline, facts=replace(baseline.facts, validation=bare)))
    assert finding.verdict == "Fail"
    assert "9 of 9 validation rows have no expected" in finding.observed


def test_rows_that_start_no_episode_are_named() -> None:
    baseline = desk_baseline(PickyDesk)
    closed = [{**row, "closed": True} for row in desk_rows(5, 7)]
    finding = found("splits", PickyDesk, replace(baseline, facts=replace(baseline.facts, test=closed)))
    assert finding.verdict == "Fail"
    assert "no episode starts from test row" in finding.observed
    assert "opened_by" in finding.examples[0].text


def test_a_lost_sandbox_says_nothing_of_its_row() -> None:
    baseline = desk_baseline()
    baseline = replace(baseline, facts=replace(baseline.facts, test=desk_rows(5, 7)))
    played = [
        PlayedScript(script, error="no sandbox within 60 s") for script in BY_ID["splits"].scripts(baseline)
    ]
    assert played
    assert BY_ID["splits"].judge(baseline, played).verdict == "Pass"


@pytest.mark.parametrize("error", ["tool reset_password raised", "Connection reset by peer"])
def test_the_word_reset_alone_blames_no_row(error: str) -> None:
    lost = an_episode(reward=None, error=error, cause="ToolFailed")
    baseline = a_baseline([a_sample(lost), *desk_baseline().sampled], rows=desk_rows(13))
    baseline = replace(baseline, facts=replace(baseline.facts, test=desk_rows(5, 7)))
    played = [PlayedScript(script, error=error) for script in BY_ID["splits"].scripts(baseline)]
    assert played
    assert BY_ID["splits"].judge(baseline, played).verdict == "Pass"


def test_a_baseline_episode_that_does_not_start_is_named() -> None:
    lost = an_episode(reward=None, error="KeyError: 'tier'", cause="ResetFailed")
    baseline = a_baseline([a_sample(lost), *desk_baseline().sampled], rows=desk_rows(13))
    finding = BY_ID["splits"].judge(baseline, ())
    assert finding.verdict == "Fail"
    assert "no episode starts from train row 0" in finding.observed


class MoodyDesk(Desk):
    """An environment whose judge never gives the same number twice."""

    asked = 0

    def reward(self, transcript: Transcript) -> Reward:
        MoodyDesk.asked += 1
        return Reward(0.5 + MoodyDesk.asked / 10_000)


def test_a_judge_may_say_another_number() -> None:
    baseline = desk_baseline(MoodyDesk)
    assert found("deterministic", MoodyDesk, baseline).verdict == "Fail"
    judged = replace(baseline, facts=replace(baseline.facts, judged=True))
    finding = found("deterministic", MoodyDesk, judged)
    assert finding.verdict == "Pass"
    assert "Reward and score were not compared" in finding.observed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": None},
        {"type": "number", "maximum": "10"},
        {"type": "array", "items": True},
        {"type": "object", "properties": ["a"]},
        {"type": "string", "enum": 7},
    ],
)
def test_an_odd_schema_of_a_tool_leaves_canaries(schema: Mapping[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    odd = {"type": "function", "function": {"name": "put", "parameters": parameters}}
    baseline = desk_baseline()
    baseline = replace(baseline, sampled=[replace(one, tools=[odd]) for one in baseline.sampled])
    scripts = [*isolated.scripts(baseline), *BY_ID["constant-guess"].scripts(baseline)]
    assert any(call.name == "put" for script in scripts for call in script.calls)


def test_empty_splits_are_unknown() -> None:
    baseline = a_baseline([])
    nothing = replace(baseline, facts=replace(baseline.facts, rows=[]))
    assert BY_ID["splits"].judge(nothing, ()).verdict == "Unknown"
