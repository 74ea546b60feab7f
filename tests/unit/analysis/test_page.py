"""`report.html`: what it shows for runs that went well, collapsed, or have barely begun."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import finished_evaluation as ended
import learner_rig
import numpy as np
import pytest
import written_run
from written_run import HOSTILE, Made

from headway_analysis.measures import tasks
from headway_analysis.report.document import document
from headway_analysis.report.markdown import VERDICTS
from headway_analysis.report.page import (
    choice,
    comparison,
    curves,
    drawing,
    evaluation,
    html,
    reading,
    training,
)
from headway_analysis.report.page.curves import Chart, Line, thinned
from headway_analysis.report.page.episodes import coloured, shortened
from headway_api.artifacts import Layout
from headway_api.metrics import family
from headway_api.records import BatchMetrics, TrainingRow
from headway_api.run_files import RunFiles
from headway_api.store import FileStore
from headway_coordinator.spool import Spool


class Read(HTMLParser):
    """A page as a browser reads it: text, ids, scripts and all addresses."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.scripts = 0
        self.text = ""
        self._skip = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.addresses += [
            str(found[name]) for name in ("src", "href", "xlink:href", "action") if name in found
        ]
        self.scripts += tag == "script"
        self._skip = tag if tag in ("script", "style") else self._skip

    def handle_endtag(self, tag: str) -> None:
        self._skip = "" if tag == self._skip else self._skip

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skip else data


class Tables(HTMLParser):
    """The cells of a page's tables, by the name of the table's region."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._region = ""
        self._in_cell = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("role") == "region":
            self._region = found["aria-label"] or ""
        elif tag == "tr":
            self.rows.setdefault(self._region, []).append([])
        elif tag == "td":
            self.rows[self._region][-1].append("")
        self._in_cell = tag == "td"

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[self._region][-1][-1] += data


def rows_of(page: str, table: str) -> list[list[str]]:
    """The rows of the table with this title, without its header."""
    return [row for row in Tables(page).rows[table] if row]


def files(made: Made) -> RunFiles:
    return RunFiles(FileStore(), made.layout)


def page_of(made: Made) -> str:
    return training.page(reading.training(files(made), written_run.decode))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written_run.write(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def good_page(good: Made) -> str:
    return page_of(good)


def test_the_page_links_only_to_itself(good_page: str) -> None:
    found = Read(good_page)
    assert found.addresses, "sections are linked"
    assert all(each.startswith(("#", "data:application/gzip;")) for each in found.addresses)
    assert "url(http" not in good_page
    assert len(found.ids) == len(set(found.ids)), "no id is used twice"
    links = {each[1:] for each in found.addresses if each.startswith("#")}
    assert links <= set(found.ids), "every link leads somewhere"


def test_a_strangers_markup_is_shown_as_text(good_page: str) -> None:
    found = Read(good_page)
    assert found.scripts == 1, "the page's own"
    assert found.text.count(HOSTILE) > 10


def test_the_page_says_how_the_run_went(good: Made, good_page: str) -> None:
    found, validations = Read(good_page).text, files(good).validations()
    first, last = validations[0], validations[-1]
    assert f"{first.external_score:.0%} → {last.external_score:.0%}" in found
    assert "finished: MaxSteps, step 20" in found
    assert "0.0123 USD" in found
    assert "No signal was raised." in found
    assert "Cost of the whole job when each step was taken" in found
    for title in ("Reward", "External score", "Entropy", "Seconds of a step", "Reward by field"):
        assert title in found
    assert "Remedies" not in Tables(good_page).rows
    assert "Dashed: a remedy was taken." not in found


def test_the_page_lists_the_runs_usage_by_class(good: Made, good_page: str) -> None:
    report = files(good).document(good.layout.report) or {}
    used = {name: amount for name, amount in report["usageByClass"].items() if amount}
    assert {"prefill", "sample", "train"} <= used.keys()
    assert rows_of(good_page, "What was used") == [[name, f"{used[name]:,.0f}"] for name in used]
    facts = Read(good_page).text
    assert report["usage"]["priceBook"] in facts
    assert re.search(rf"Tokens of training\s*{report['usage']['totalTokens']:,}\s", facts)


def test_the_cost_of_the_job_by_step_has_a_curve(good: Made, good_page: str) -> None:
    run = reading.curves(files(good))
    [chart] = [each for each in curves.training(run.by_step, run.validations) if each.title == "Cost"]
    assert chart.lines[0].points == tuple((float(step), 0.0006 * step) for step in range(1, 21))
    assert 'aria-label="Cost by step"' in good_page
    assert rows_of(good_page, "Numbers of Cost")[-1] == ["20", "0.012"]


def test_preflight_verdicts_are_shown_gravest_first(good_page: str) -> None:
    assert rows_of(good_page, "Preflight") == [
        ["Warn", "reward-variance", "5 of 24 groups differ.", "Raise algorithm.groupSize."],
        ["Unknown", "scorer-agrees", "No episode has both.", "Return an external score."],
        ["Pass", "foothold", "41 of 96 episodes earn more than 0.", ""],
    ]


def test_a_remedy_is_listed_and_marked_on_every_curve(tmp_path: Path) -> None:
    run = reading.training(files(written_run.write(tmp_path, "collapsed", steps=40, remedy_at=30)))
    found_page = training.page(run)
    why = "RewardCollapsed is raised: the reward fell from 0.9 to 0.1."
    assert rows_of(found_page, "Remedies") == [["1", "30", "LowerLearningRate", "RewardCollapsed", why]]
    assert "Dashed: a remedy was taken." in Read(found_page).text
    charts = curves.training(run.by_step, run.validations)
    assert found_page.count("stroke-dasharray: 4,3") == len(charts) > 10
    assert drawing.svg(charts[0], "k").count("stroke-dasharray") == 0


def test_every_point_of_a_curve_is_the_metric_of_its_step(good: Made) -> None:
    run = reading.curves(files(good))
    charts = {chart.title: chart for chart in curves.training(run.by_step, run.validations)}
    kept = files(good).batch_metrics()
    trained = dict(charts["Reward"].lines[0].points)
    assert trained == {float(step): found.metrics["rollout/reward/mean"] for step, found in kept.items()}
    held_out = dict(charts["External score"].lines[1].points)
    assert held_out == {float(each.step): each.external_score for each in run.validations}


def test_an_interval_is_that_of_an_evaluation() -> None:
    rows = [[1.0], [0.0], [1.0], [1.0], [0.0], [1.0], [1.0], [1.0], [0.0], [1.0]]
    low, high = curves.interval(rows) or (np.nan, np.nan)
    # Wilson's interval of 7 successes in 10 tries, by its formula.
    z, n, share = 1.959964, 10, 0.7
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    assert (low, high) == pytest.approx((centre - half, centre + half), abs=1e-6)
    assert curves.interval([[0.5]]) is None, "one row shows nothing of another"
    assert curves.interval([]) is None


def test_a_collapse_is_shaded_and_named(tmp_path: Path) -> None:
    found_page = page_of(written_run.write(tmp_path, "collapsed", steps=40))
    found = Read(found_page).text
    assert "RewardCollapsed" in found
    assert re.search(r"RewardCollapsed\s*Raised", found)
    assert "Shaded: a signal was raised." in found
    assert "var(--shade)" in found_page


def test_a_run_that_has_barely_begun_says_so(tmp_path: Path) -> None:
    layout = Layout(f"file://{tmp_path}", "team", "new", "uid")
    found = Read(training.page(reading.training(RunFiles(FileStore(), layout)))).text
    assert "not finished: no step was taken yet" in found
    assert "No step has trained yet" in found
    assert "No validation has ended" in found
    assert "no job.json" in found


def test_the_page_of_a_running_job_shows_what_it_has(tmp_path: Path) -> None:
    found = Read(page_of(written_run.write(tmp_path, steps=3, finished=False))).text
    assert "not finished: step 3" in found
    assert "training episodes" in found


def test_however_many_episodes_there_are_few_are_shown(tmp_path: Path) -> None:
    found_page = page_of(written_run.write(tmp_path, steps=50, groups=2, size=8, every=25))
    assert 20 <= found_page.count('<details class="episode') <= 80


def test_a_too_large_page_omits_tokens_first_then_episodes(
    good: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = reading.training(files(good), written_run.decode)
    whole = training.page(run)
    monkeypatch.setattr(html, "LARGEST", len(whole.encode()) - 1)
    without = Read(training.page(run)).text
    assert "The tokens of episodes are left out" in without
    assert "episodes are left out" not in without.replace("The tokens of episodes are left out", "")
    monkeypatch.setattr(html, "LARGEST", len(whole.encode()) // 3)
    assert "episodes are left out: the page would be too large" in Read(training.page(run)).text


def test_only_chosen_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = written_run.write(tmp_path, steps=60, groups=3)
    read: list[str] = []
    real = RunFiles.groups

    def counted(self: RunFiles, uris: Any) -> Any:
        read.extend(uris)
        return real(self, uris)

    monkeypatch.setattr(RunFiles, "groups", counted)
    page_of(made)
    assert len(read) <= choice.MAX_STEPS * 3 + 2 * choice.ROWS
    assert len(read) == len(set(read))


def test_the_same_rows_are_shown_before_and_after(good: Made) -> None:
    chosen = choice.validated_rows(files(good).validations())
    rows: dict[int, list[str]] = {}
    for step, group in chosen:
        rows.setdefault(step, []).append(group.rpartition("-")[2])
    assert list(rows) == [20, 0]
    assert rows[0] == rows[20]
    assert len(rows[0]) == choice.ROWS


def test_a_row_whose_reward_and_score_part_is_shown_first(good: Made) -> None:
    last = files(good).validations()[-1]
    diverged = [g for g, row in last.rows.items() if row.rewards[0] != row.scores[0]]
    assert diverged, "the run has such rows"
    shown = [group for step, group in choice.validated_rows(files(good).validations()) if step == 20]
    assert set(shown[: min(len(diverged), choice.ROWS // 2)]) <= set(diverged)


def test_an_advantage_is_the_reward_less_its_groups_mean(good: Made) -> None:
    group = next(files(good).groups([files(good).layout.train_group("t0-000002")]))
    mean = sum(each.reward or 0 for each in group.episodes) / len(group.episodes)
    for each in group.episodes:
        assert choice.Shown.of(group, each, "").advantage == pytest.approx((each.reward or 0) - mean)


def test_each_sampled_token_has_the_shade_of_its_probability() -> None:
    row = TrainingRow.model_construct(
        tokens=[0, 1, 2, 3, 4], mask=[0, 0, 1, 1, 0], logprobs=[0.0, 0.0, float(np.log(0.25)), 0.0, 0.0]
    )
    pieces = [*coloured(row, written_run.decode)]
    assert [(each.text, each.shade) for each in pieces] == [
        ("ab c", None),
        ("<d>", 2),
        ("\n", 9),
        ("é", None),
    ]


def test_a_letter_of_two_tokens_is_shown_once() -> None:
    text = "é".encode()
    row = TrainingRow.model_construct(tokens=[*text], mask=[1, 1], logprobs=[-0.1, -0.1])
    pieces = [*coloured(row, lambda ids: bytes(ids).decode(errors="ignore"))]
    assert [each.text for each in pieces] == ["", "é"]


def test_a_long_text_says_how_much_is_left_out() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdef", 4) == "abcd … (2 more characters)"


def test_thinning_keeps_every_spike() -> None:
    points = [(float(step), 1.0) for step in range(5_000)]
    points[3_333] = (3_333.0, 99.0)
    kept = thinned(points)
    assert len(kept) <= curves.MAX_POINTS
    assert (3_333.0, 99.0) in kept
    assert [*kept] == sorted(kept)


def test_a_drawing_has_variables_for_colours_and_ids_of_its_own() -> None:
    chart = Chart("A & B", "x", (Line("$m_1$", ((0.0, 1.0), (1.0, 2.0))),))
    first, second = drawing.svg(chart, "k1"), drawing.svg(chart, "k2")
    assert "var(--c1)" in first
    assert "#000011" not in first
    assert 'aria-label="A &amp; B by step"' in first
    assert first.replace("k1-", "k2-") == second
    assert not set(Read(first).ids) & set(Read(second).ids)


def test_runs_are_compared_on_the_same_axes(good: Made, tmp_path: Path) -> None:
    other = written_run.write(tmp_path, "collapsed", name="spoilt", seed=7)
    runs = [reading.curves(files(each)) for each in (good, other)]
    found = Read(comparison.page(runs)).text
    assert "refunds and spoilt" in found
    assert re.search(r"spec\.seed\s*not set\s*7|spec\.seed\s*0\s*7", found), "the field that differs"
    assert "spec.environment.entrypoint" not in found, "a field that does not"


def test_runs_of_one_name_are_told_apart(good: Made, tmp_path: Path) -> None:
    again = written_run.write(tmp_path)
    runs = [reading.curves(files(good)), reading.curves(files(again))]
    other = comparison.page([runs[0], type(runs[1])(**{**runs[1].__dict__, "uid": "99999999-0000"})])
    assert "refunds 0f0e0d0c and refunds 99999999" in Read(other).text


@pytest.fixture
def evaluated(tmp_path: Path) -> RunFiles:
    layout = Layout(f"file://{tmp_path}", "team", "judged", "uid")
    store = FileStore()
    store.put(layout.report, json.dumps(document(ended.finished(), ended.compared())).encode())
    for name in ended.CHANCE:
        for group in ended.groups(name):
            text = gzip.compress(group.model_dump_json().encode())
            store.put(layout.evaluation_group(name, group.group_id), text)
    return RunFiles(store, layout)


def test_an_evaluation_has_its_table_gate_and_episodes(evaluated: RunFiles) -> None:
    run = reading.evaluation(evaluated, written_run.decode)
    assert run is not None
    found_page = evaluation.page(run)
    found = Read(found_page).text
    for name in ended.CHANCE:
        assert name in found
    best = run.report["headline"]
    assert best["candidate"] in found
    assert "External score" in found
    gate = run.report["gate"]
    verdict = VERDICTS[gate["verdict"]]
    assert f"RLEvalJob, gate {verdict}" in found
    assert re.search(rf"Gate\s*{verdict}\s*Rows", found), "among the facts"
    checks = [[VERDICTS[each["verdict"]], each["message"]] for each in gate["checks"]]
    assert len(checks) > 2
    assert rows_of(found_page, "Gate") == checks
    assert gate["message"] in found
    assert len(run.episodes) >= choice.ROWS
    assert len(Read(found_page).ids) == len(set(Read(found_page).ids))


def test_the_page_accounts_for_step_time_and_holds_the_trace(good: Made, good_page: str) -> None:
    parsed = Read(good_page)
    assert re.search(r"step\s*seconds\s*where they went\s*accounted for\s*1\s*12\s*", parsed.text)
    # Of the 12 s of a step, 9 s are a wait for an episode that samples twice for 2 s.
    [_, seconds, parts, known] = rows_of(good_page, "Time of a step")[0]
    assert (seconds, known) == ("12", "100.0%")
    assert set(parts.split(", ")) == {
        "sampling by the model 33.3%",
        "learner: policy update 20.8%",
        "tools 12.5%",
        "waiting for a sandbox 8.3%",
        "judgement by the environment 8.3%",
        "learner: report 4.2%",
        "the agent between turns and tools 4.2%",
        "waiting for a place 4.2%",
        "storing of the batch's last group 1.7%",
        "delivery of the batch 1.7%",
        "forming of the batch 0.8%",
    }
    [address] = [each for each in parsed.addresses if each.startswith("data:")]
    trace = json.loads(gzip.decompress(base64.b64decode(address.partition(",")[2])))
    names = {each["name"] for each in trace["traceEvents"]}
    assert {"step 1", "step 20", "wait for batch", "policy update", "turn 0", "tool look"} <= names


def test_the_steps_that_are_read_have_a_bound_on_their_groups() -> None:
    reports = [
        learner_rig.report(step).model_copy(update={"groups": [f"t0-{step}-{n}" for n in range(100)]})
        for step in range(1, 50)
    ]
    assert [each.step for each in choice.trained_steps(reports)] == [1, 49]
    assert [each.step for each in choice.trained_steps(reports[:1])] == [1]
    assert choice.trained_steps([learner_rig.report(0)]) == []


def test_asked_steps_are_read_however_many_groups_they_have() -> None:
    groups = [f"t0-{at:06d}" for at in range(choice.MAX_GROUPS + 1)]
    reports = [learner_rig.report(step).model_copy(update={"groups": groups}) for step in range(1, 10)]
    found = choice.asked_steps(reports, [7, 3, 5, 1000])
    assert [each.step for each in found] == [3, 5, 7]
    assert choice.asked_steps([learner_rig.report(3)], [3]) == [], "it trained no batch"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(13977, "13,977"), (10000.0, "10,000"), (999.96, "1000"), (0.012345, "0.01235"), (1e-9, "1e-09"),
     (-2500.4, "-2,500"), (1e30, "1e+30")],
)  # fmt: skip
def test_digits_before_the_point_are_never_rounded_away(value: float, expected: str) -> None:
    assert html.short(value) == expected


def test_counts_and_steps_are_written_in_full() -> None:
    chart = Chart("Tokens", "tokens", (Line("all", ((1_234_567.0, 13_977.0), (1_234_568.0, 14_000.0))),))
    assert html.Picture.of(chart, "").rows == [("1234567", "13,977"), ("1234568", "14,000")]


def test_a_step_in_which_a_sign_was_raised_is_read() -> None:
    reports = [
        learner_rig.report(step).model_copy(update={"groups": [f"t0-{step}"]}) for step in range(1, 100)
    ]
    found = [each.step for each in choice.trained_steps(reports, [33, 1000])]
    assert 33 in found
    assert (found[0], found[-1], len(found)) == (1, 99, choice.MAX_STEPS)


def test_every_metric_of_a_panel_is_one_that_jobs_have() -> None:
    for panel in curves.PANELS:
        for name, _ in panel.names:
            family(f"{name}x" if name.endswith("/") else name)  # raises where nothing produces it


def test_tasks_have_a_curve_each() -> None:
    groups = [learner_rig.group(f"t0-{n:06d}", [1.0, 0.0]).model_copy(update={"row": n}) for n in range(2)]
    charts = curves.training({1: tasks.batch(groups, ["odd", "even"])}, [])
    [chart] = [each for each in charts if each.title == "Reward by task"]
    assert sorted(line.name for line in chart.lines) == ["even", "odd"]


def test_metrics_of_a_step_that_was_taken_again_do_not_count(tmp_path: Path) -> None:
    made = written_run.write(tmp_path, steps=3)
    spool = Spool(FileStore(), made.layout)
    spool.keep_metrics(BatchMetrics(step=2, groups=["t0-000099"], metrics={"rollout/reward/mean": 9.0}))
    by_step = reading.curves(files(made)).by_step
    assert "rollout/reward/mean" in by_step[1]
    assert "rollout/reward/mean" not in by_step[2]
    assert "training/entropy" in by_step[2], "the learner's own stand"


def test_a_run_of_many_steps_has_a_page() -> None:
    names = [name for panel in curves.PANELS for name, _ in panel.names if not name.endswith("/")]
    found = {step: dict.fromkeys(names, step % 7 + 0.123456) for step in range(1, 20_001)}
    charts = curves.training(found, [])
    made = [html.Picture.of(chart, drawing.svg(chart, f"p{n}")) for n, chart in enumerate(charts)]
    assert all(len(picture.rows) <= html.MAX_NUMBERS for picture in made)
    whole = html.rendered(html.Page("t", "RLTrainingJob", "finished", [], pictures=made))
    assert len(whole.encode()) <= html.LARGEST


def test_an_evaluation_group_is_read_once_to_choose_once_to_show(
    evaluated: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = RunFiles.groups

    def counted(self: RunFiles, uris: Any) -> Any:
        read.extend(uris)
        return real(self, uris)

    monkeypatch.setattr(RunFiles, "groups", counted)
    run = reading.evaluation(evaluated)
    assert run is not None
    assert len(read) == len(ended.CHANCE) * ended.ROWS + len(run.episodes)


def test_an_evaluation_that_has_not_ended_has_no_page(tmp_path: Path) -> None:
    layout = Layout(f"file://{tmp_path}", "team", "judged", "uid")
    assert reading.evaluation(RunFiles(FileStore(), layout)) is None
