"""A candidate's measures, recounted from the raw records in plain Python."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from episodes import sealed

from headway_analysis.gate import Bound, GateSpec, Verdict, judge
from headway_analysis.measures.candidate import (
    by_task,
    differences,
    estimates,
    less_is_better,
    priced,
    samples,
    tasks_of,
    total_cost,
)
from headway_analysis.measures.catalogue import TOOLS_NAMED, catalogue
from headway_analysis.measures.tries import Rules, Try, TryPlace, a_try
from headway_analysis.statistics.estimates import Why
from headway_api.prices import DEFAULT, DatedPrices, PriceBook, Prices
from headway_api.records import EpisodeRecord, Outcome
from headway_api.spec import gate as api

ROWS, TRIES, THRESHOLD, MAX_TURNS = 12, 4, 0.6, 3
BOOK = PriceBook(
    name="test",
    entries=(
        DatedPrices(since=date(2020, 1, 1), prices=DEFAULT.entries[0].prices),
        DatedPrices(
            since=date(2023, 11, 14),
            prices=Prices(
                evaluation_prefill="1",
                evaluation_cached_prefill="0.1",
                evaluation_sample="3",
                discarded="2",
                sandbox_seconds="0",
            ),
        ),
    ),
)
TASKS = ("refund", "refund", "claim")


def records(seed: int) -> list[tuple[int, EpisodeRecord]]:
    """Rows and their episodes, with everything that a measure counts."""
    rng = np.random.default_rng(seed)
    found = []
    for row in range(ROWS):
        for index in range(TRIES):
            outcome = Outcome(rng.choice([*Outcome], p=[0.6, 0.2, 0.1, 0.1]))
            reward = None if outcome is Outcome.INFRA_ERROR else round(float(rng.random()), 1)
            record = sealed(
                f"{seed}-{row}", index, reward=reward, turns=int(rng.integers(1, 4)), outcome=outcome
            )
            if reward is not None:
                metrics = {"fields": round(float(rng.random()), 2)} | ({"format": 1.0} if row % 2 else {})
                score = round(float(rng.random()), 1)
                record = record.model_copy(update={"metrics": metrics, "score": score})
            found.append((row, record.model_copy(update={"messages": conversation(rng, len(record.turns))})))
    return found


def conversation(rng: np.random.Generator, turns: int) -> list[dict[str, object]]:
    """A conversation of so many turns: calls, some of which fail, and an answer or none."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
    for turn in range(turns - 1):
        name = str(rng.choice(["look-up", "close"]))
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"{turn}", "function": {"name": name}}],
            }
        )
        words = "error: none" if rng.random() < 0.3 else "ok"
        messages.append({"role": "tool", "tool_call_id": f"{turn}", "content": words})
    return [*messages, {"role": "assistant", "content": str(rng.choice(["", "Yes."]))}]


def as_tries(found: list[tuple[int, EpisodeRecord]], candidate: str = "tuned") -> list[Try]:
    rules = Rules(THRESHOLD, MAX_TURNS)
    return [a_try(record, TryPlace(candidate, row, TASKS[row % 3]), rules) for row, record in found]


FOUND = records(1)
MEASURES = catalogue(as_tries(FOUND), [1, 2, 4], priced(BOOK))


def recount(found: list[tuple[int, EpisodeRecord]]) -> dict[str, float]:
    """Every measure, from the records alone."""
    scored = [(row, e) for row, e in found if e.outcome is not Outcome.INFRA_ERROR]
    good = [e for _, e in scored]
    calls = [
        (call["function"]["name"], answer["content"])
        for e in good
        for call_message, answer in zip(e.messages, e.messages[1:], strict=False)
        for call in call_message.get("tool_calls", [])
    ]
    cost = sum(
        (
            e.turns
            and sum(
                1 * (t.prompt_tokens - t.cached_tokens) + 0.1 * t.cached_tokens + 3 * t.sampled_tokens
                for t in e.turns
            )
            if e.outcome is not Outcome.INFRA_ERROR
            else sum(2 * (t.prompt_tokens - t.cached_tokens + t.sampled_tokens) for t in e.turns)
        )
        / 1e6
        for _, e in found
    )
    full = [e.outcome is Outcome.TRUNCATED and len(e.turns) == MAX_TURNS for e in good]
    counted: dict[str, float] = {
        "reward": fmean(e.reward or 0 for e in good),
        "external_score": fmean(e.score or 0 for e in good),
        "success": fmean((e.score or 0) >= THRESHOLD for e in good),
        "success_by_reward": fmean((e.reward or 0) >= THRESHOLD for e in good),
        "completion": fmean(
            e.outcome is Outcome.COMPLETED and e.messages[-1]["content"] == "Yes." for e in good
        ),
        "format": 1.0,
        "metric_fields": fmean(e.metrics["fields"] for e in good),
        "turns": fmean(len(e.turns) for e in good),
        "prompt_tokens": fmean(sum(t.prompt_tokens - t.cached_tokens for t in e.turns) for e in good),
        "cached_tokens": fmean(sum(t.cached_tokens for t in e.turns) for e in good),
        "sampled_tokens": fmean(sum(t.sampled_tokens for t in e.turns) for e in good),
        "seconds": 2.0,
        "sandbox_seconds": 1.5,
        "cost": cost / len(good),
        "cost_total": cost,
        "cost_per_success": cost / sum((e.score or 0) >= THRESHOLD for e in good),
        "tool_calls": len(calls) / len(good),
        "tool_calls_look_up": sum(name == "look-up" for name, _ in calls) / len(good),
        "tool_calls_close": sum(name == "close" for name, _ in calls) / len(good),
        "failed_tool_calls": fmean(words.startswith("error: ") for _, words in calls),
        "malformed_tool_calls": 0.0,
        "turn_limit": fmean(full),
        "token_limit": fmean(
            e.outcome is Outcome.TRUNCATED and not at for e, at in zip(good, full, strict=True)
        ),
        "agent_error": fmean(e.outcome is Outcome.AGENT_ERROR for e in good),
        "infra_error": 1 - len(good) / len(found),
    }
    for k in (1, 2, 4):
        for suffix, of in (("", "score"), ("_by_reward", "reward")):
            for stem, judged in (("pass_at", any), ("pass_power", all)):
                rows = [
                    [getattr(e, of) >= THRESHOLD for row, e in scored if row == place]
                    for place in range(ROWS)
                ]
                values = [fmean(map(judged, combinations(row, k))) for row in rows if len(row) >= k]
                if values:
                    counted[f"{stem}_{k}{suffix}"] = fmean(values)
    return counted


def test_every_measure_equals_the_recount() -> None:
    found = estimates(as_tries(FOUND), MEASURES, priced(BOOK))
    assert {name: each.value for name, each in found.items()} == pytest.approx(recount(FOUND))
    assert found["infra_error"].value > 0
    assert found["cost_total"].why is Why.TOTAL


def own_loop(candidate: str = "tuned") -> list[Try]:
    """Tries of an agent that has its own loop, so its turn limit is not known."""
    return [a_try(record, TryPlace(candidate, row), Rules(1.0)) for row, record in FOUND]


def test_an_agent_with_a_loop_of_its_own_has_no_turn_limit() -> None:
    tries = own_loop()
    measures = catalogue(tries, [1])
    found, bounded = estimates(tries, measures), estimates(as_tries(FOUND), MEASURES)
    assert {each.outcome for each in tries} >= {Outcome.TRUNCATED}
    assert bounded.keys() - found.keys() >= {"turn_limit"}
    assert found.keys() >= {"turns", "token_limit", "agent_error", "infra_error"}
    assert differences({"tuned": tries, "base": own_loop("base")}, "base", measures["turn_limit"]) == {}


def test_a_gate_on_the_turn_limit_of_such_an_agent_is_an_error() -> None:
    measures = catalogue(own_loop(), [1])
    values = {name: samples(own_loop(name), measures) for name in ("tuned", "base")}
    asked = (
        GateSpec("tuned", metric="turn_limit", must_beat="base"),
        GateSpec("tuned", must_beat="base", no_worse=[Bound("turn_limit")]),
    )
    for spec in asked:
        found = judge(spec, values, less_is_better(measures))
        assert found.verdict is Verdict.ERROR
        assert "names the metric turn_limit, which tuned does not report; it reports" in found.message


def test_every_task_is_measured_apart_and_all_of_them_together() -> None:
    found = by_task(as_tries(FOUND), MEASURES, priced(BOOK))
    assert list(found) == ["all", "claim", "refund"]
    for task, measured in found.items():
        part = [(row, e) for row, e in FOUND if task in ("all", TASKS[row % 3])]
        assert measured["success"].value == pytest.approx(recount(part)["success"])
        assert measured["success"].n == len({row for row, e in part if e.outcome is not Outcome.INFRA_ERROR})


def test_without_a_task_column_the_only_task_is_all() -> None:
    tries = [a_try(record, TryPlace("tuned", row), Rules()) for row, record in FOUND]
    assert tasks_of(tries) == ["all"]


def test_pass_at_k_says_how_many_rows_have_k_tries() -> None:
    found = estimates(as_tries(FOUND), MEASURES)
    whole = sum(
        all(e.outcome is not Outcome.INFRA_ERROR for r, e in FOUND if r == row) for row in range(ROWS)
    )
    assert 0 < whole < ROWS
    assert (found["pass_at_4"].n, found["pass_at_1"].n) == (whole, ROWS)


def test_costs_are_exact_and_take_the_day_the_try_ended() -> None:
    price = priced(BOOK)
    tries = as_tries(FOUND)
    assert total_cost(tries, price) == sum(map(price, tries), Decimal(0))
    assert estimates(tries, MEASURES, price)["cost_total"].value == pytest.approx(
        recount(FOUND)["cost_total"]
    )


def test_no_tries_have_no_measures() -> None:
    assert estimates([], MEASURES, priced(BOOK)) == {}


def test_candidates_that_never_succeed_have_no_cost_per_success() -> None:
    tries = [a_try(record, TryPlace("tuned", row), Rules(threshold=2.0)) for row, record in FOUND]
    found = estimates(tries, MEASURES, priced(BOOK))
    assert "cost_per_success" not in found
    assert found["success"].value == 0
    assert found["success"].high is not None
    assert found["success"].high > 0.05


def test_a_half_finished_candidate_is_compared_over_its_rows() -> None:
    ours, theirs, half = (
        as_tries(FOUND),
        as_tries(records(2), "base"),
        as_tries(records(3)[: 8 * TRIES], "half"),
    )
    found = differences({"tuned": ours, "base": theirs, "half": half}, "base", MEASURES["external_score"])
    assert list(found) == ["tuned", "half"]
    base = {(t.place.row, t.index): t.external_score for t in theirs if t.scored}
    pairs = [
        (t.external_score, base[t.place.row, t.index])
        for t in half
        if t.scored and (t.place.row, t.index) in base
    ]
    assert found["half"].value == pytest.approx(fmean((a or 0) - (b or 0) for a, b in pairs))
    assert (found["half"].tries, found["half"].n) == (len(pairs), 8)
    assert found["tuned"].p_holm is not None
    assert found["tuned"].p is not None
    assert found["tuned"].p_holm >= found["tuned"].p


def test_made_up_tools_add_a_bounded_number_of_measures() -> None:
    calls = [{"id": str(i), "function": {"name": f"tool{i}"}} for i in range(500)]
    record = sealed("v0-0", turns=1).model_copy(
        update={"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}
    )
    named = [name for name in catalogue(as_tries([(0, record)]), [1]) if name.startswith("tool_calls_")]
    assert named == sorted(
        f"tool_calls_{name}" for name in sorted(f"tool{i}" for i in range(500))[:TOOLS_NAMED]
    )
    found = catalogue(as_tries([(0, record)]), [1], tools=["escalate"])
    assert found["tool_calls_escalate"].sample(as_tries([(0, record)])).mean == 0


def test_a_tools_name_without_end_is_cut_in_measures() -> None:
    calls = [{"id": str(i), "function": {"name": name}} for i, name in enumerate(["x" * 9000, "x" * 64, ""])]
    record = sealed("v0-0", turns=1).model_copy(
        update={"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}
    )
    tries = as_tries([(0, record)])
    named = {name: m.sample(tries).mean for name, m in catalogue(tries, [1]).items() if "tool_calls_" in name}
    assert named == {f"tool_calls_{'x' * 64}": 2.0, "tool_calls__": 1.0}


def test_the_gate_judges_any_measure_by_its_name() -> None:
    named = {"tuned": samples(as_tries(FOUND), MEASURES), "base": samples(as_tries(records(2)), MEASURES)}
    for metric in recount(FOUND).keys() - {"cost_total"}:
        found = judge(GateSpec("tuned", metric=metric, must_beat="base"), named, less_is_better(MEASURES))
        assert found.verdict is not Verdict.ERROR, metric
        assert metric in found.message


def test_a_gate_takes_the_measures_there_are() -> None:
    """The API refuses other measures at `kubectl apply`, and may not import the catalogue."""
    tool = {name for name in MEASURES if name.startswith(api.OF_A_TOOL)}
    static = {
        name
        for name in MEASURES
        if not name.startswith(api.OPEN_PREFIXES) and not re.search(api.PASSES, name)
    }
    assert static == {*api.MORE_IS_BETTER, *api.LESS_IS_BETTER}
    assert less_is_better(MEASURES) == {*api.LESS_IS_BETTER, *tool}
    passes = {name for name in MEASURES if re.search(api.PASSES, name)}
    assert {name for name in MEASURES if MEASURES[name].scale == "share"} == {*api.SHARE_MEASURES, *passes}
    assert passes == {
        f"{stem}_{k}{suffix}"
        for k in (1, 2, 4)
        for stem in ("pass_at", "pass_power")
        for suffix in ("", "_by_reward")
    }


def test_the_documentation_defines_every_measure() -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
    for measure in (*MEASURES, "cost_total"):
        name = re.sub(r"^(metric|tool_calls)_.*", r"\1_{NAME}", re.sub(r"_\d+(?=$|_by)", "_{k}", measure))
        written = name.replace("metric_{NAME}", "metric_{field}").replace("{NAME}", "{tool}")
        assert re.search(rf"^\|.*`{re.escape(written)}`.* \| ", page, re.MULTILINE), written
