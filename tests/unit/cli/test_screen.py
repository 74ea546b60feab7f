"""The screen of `headway watch` at three widths, for real jobs and for jobs that no version writes.

The pictures are in `screens/`. Write them again with `WRITE_SCREENS=1 pytest tests/unit/cli/test_screen.py`,
and read the difference before you commit it.
"""

from __future__ import annotations

import copy
import io
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import shown_jobs
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from shown_jobs import NOW, watched

from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_cli import progress
from headway_cli.pace import History
from headway_cli.screen import layout, screen
from headway_cli.screen.layout import Row

ROOT = Path(__file__).resolve().parents[3]
SCREENS = Path(__file__).with_name("screens")
JOBS: dict[str, Callable[[], dict[str, Any]]] = {
    "pending": shown_jobs.pending,
    "training": shown_jobs.training,
    "stuck": shown_jobs.stuck,
    "paused": shown_jobs.paused,
    "complete": shown_jobs.complete,
    "evaluation": shown_jobs.evaluation,
}
WIDTHS = (60, 80, 120)


def drawn(job: dict[str, Any], width: int, history: History | None = None) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(screen(job, NOW, watched(job) if history is None else history))
    return console.export_text()


def in_a_terminal() -> str:
    out = io.StringIO()
    console = Console(width=80, file=out, force_terminal=True, color_system="standard")
    console.print(screen(shown_jobs.training(), NOW, History()))
    return out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", JOBS)
def test_a_screen_equals_its_picture(name: str, width: int) -> None:
    path, text = SCREENS / f"{name}-{width}.txt", drawn(JOBS[name](), width)
    if os.environ.get("WRITE_SCREENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(map(cell_len, text.splitlines())) <= width


def test_every_stored_picture_is_of_a_screen() -> None:
    assert {path.stem for path in SCREENS.iterdir()} == {f"{n}-{w}" for n in JOBS for w in WIDTHS}


def test_the_page_shows_the_screen_as_it_is() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert f"```text\n{drawn(shown_jobs.training(), 80)}```" in page


@pytest.mark.parametrize("name", JOBS)
def test_no_width_splits_a_number(name: str) -> None:
    numbers = re.compile(r"\d[\d,.]*\d")
    whole = set(numbers.findall(drawn(JOBS[name](), 2000)))
    for width in range(40, 130):
        assert whole <= set(numbers.findall(drawn(JOBS[name](), width))), width


def test_signs_of_markup_and_control_are_only_text() -> None:
    job = shown_jobs.stuck()
    job["status"]["conditions"][0]["message"] = "\x1b[2J[bold]no[/bold] \u202eimage\x07 \ud800\nthere"
    text = drawn(job, 120)
    assert "[2J[bold]no[/bold] image there" in text
    assert all(each.isprintable() or each == "\n" for each in text)


def test_a_screen_without_color_has_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in in_a_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7])m", in_a_terminal())


def test_a_bar_is_ascii_on_an_ascii_only_terminal() -> None:
    lines = layout.lines([Row("step", ("1 of 2",), bar=layout.Bar(0.5))], 40, ascii_only=True)
    assert lines[0].plain == "step       ###########........... 1 of 2"


def test_an_unknown_value_is_not_shown_as_a_number() -> None:
    text = drawn(shown_jobs.pending(), 80, History())
    assert not re.search(r"[1-9]", text)


def test_a_job_that_is_over_has_no_rate_and_no_time_left() -> None:
    text = drawn(shown_jobs.complete(), 80)
    assert "- a second" in text
    assert "time left" not in text


def test_an_idle_job_has_no_time_left() -> None:
    assert "time left  -\n" in drawn(shown_jobs.paused(), 80)
    job = shown_jobs.training()
    job["status"]["progress"]["stalled"] = "no group has ended for 10 minutes: the learner waits"
    assert "time left  -\n" in drawn(job, 80)
    assert "stalled    no group has ended" in drawn(job, 80)


def test_conditions_that_are_not_true_yet_are_no_problem() -> None:
    job = shown_jobs.stuck()
    conditions = job["status"]["conditions"]
    assert drawn(job, 80).count("condition ") == 1, "two that say the same are told once"
    conditions[0] |= {"type": "PreflightPassed", "reason": "Sampling"}
    conditions[1] |= {"status": "False"}
    assert "condition " not in drawn(job, 80)


def test_without_an_estimate_time_left_follows_the_steps_seen() -> None:
    job = shown_jobs.training()
    del job["status"]["estimate"]
    assert "time left  about 58 min\n" in drawn(job, 80)  # 58 steps are left, and one is taken a minute
    assert "time left  -\n" in drawn(job, 80, History())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_pause_that_a_person_has_ended_is_not_shown(width: int) -> None:
    job = shown_jobs.paused()
    assert "paused" in drawn(job, width)
    job["status"]["resumedPause"] = job["status"]["pause"]["time"]
    assert "paused  " not in drawn(job, width)


# absurd statuses

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -1, 10**400]),
    st.floats(),
    st.text(max_size=80),
    st.sampled_from(
        ["NaN", "1e999", "-0", "0" * 500, "9" * 500, "1_0", "½", "\ud800", "\x1b[31m", "a" * 300]
    ),
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-13-45", "2026-03-04"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value in a tree, without the root."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    found = []
    for key, inner in entries:
        found += [(*path, key), *places(inner, (*path, key))]
    return found


@st.composite
def bent(draw: st.DrawFn) -> dict[str, Any]:
    """A job in which some values are replaced by unsuitable ones, or removed."""
    job = copy.deepcopy(draw(st.sampled_from([*JOBS.values()]))())
    for _ in range(draw(st.integers(1, 6))):
        path = draw(st.sampled_from([each for each in places(job) if each]))
        at = job
        for key in path[:-1]:
            at = at[key]
        if draw(st.booleans()) and isinstance(at, dict):
            del at[path[-1]]
        else:
            at[path[-1]] = draw(VALUES)
        if not places(job):
            break
    return job


def drawn_well(job: Any, width: int, later: timedelta) -> None:
    """Check that screen and lines can be drawn, fit the width, and have no control characters."""
    history = History().seen(job, NOW).seen({}, NOW).seen(job, NOW + later)
    for line in screen(job, NOW + later, history).lines(width):
        assert cell_len(line.plain) <= max(2, width)
        assert line.plain.isprintable()
    for text in (
        progress.line(job),
        progress.held_by(job),
        *progress.conditions(job),
        *progress.preflight(job),
    ):
        assert text.isprintable()
    assert progress.is_true(job, "Complete") in (True, False)


@given(job=bent(), width=st.integers(1, 200), seconds=st.integers(0, 10**6))
def test_a_status_that_no_version_writes_is_drawn(job: Any, width: int, seconds: int) -> None:
    drawn_well(job, width, timedelta(seconds=seconds))


@given(job=st.fixed_dictionaries({}, optional={"kind": VALUES, "metadata": VALUES, "status": VALUES}))
def test_an_object_that_is_not_a_job_is_drawn(job: Any) -> None:
    drawn_well(job, 60, timedelta(seconds=9))


def of_schema(schema: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a pydantic model's JSON schema allows."""
    if "$ref" in schema:
        return of_schema(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema:
        return st.one_of(*(of_schema(each, known) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if schema.get("type") == "object":
        inner = schema.get("properties", {})
        keys = {
            key: of_schema(each, known) for key, each in inner.items() if key in schema.get("required", ())
        }
        others = {key: of_schema(each, known) for key, each in inner.items() if key not in keys}
        return st.fixed_dictionaries(keys, optional=others)
    if schema.get("type") == "array":
        return st.lists(of_schema(schema["items"], known), max_size=min(3, schema.get("maxItems", 3)))
    if schema.get("type") == "integer":
        return st.integers(schema.get("minimum", 0), 2**63 - 1)
    if schema.get("type") == "boolean":
        return st.booleans()
    if schema.get("format") == "date-time":
        return st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
    if schema.get("type") == "null":
        return st.none()
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    return st.text(max_size=schema.get("maxLength", 80)) | st.sampled_from(["0.5", "12", "0.62 ± 0.05"])


def statuses(model: type[RLTrainingJobStatus | RLEvalJobStatus]) -> st.SearchStrategy[Any]:
    schema = model.model_json_schema(by_alias=True, mode="serialization")
    return of_schema({**schema, "type": "object"}, schema["$defs"])


OF_THE_API = st.one_of(
    *(
        st.fixed_dictionaries({"kind": st.just(kind), "status": statuses(model)})
        for kind, model in (("RLTrainingJob", RLTrainingJobStatus), ("RLEvalJob", RLEvalJobStatus))
    )
)


@given(job=OF_THE_API, width=st.integers(20, 120))
def test_every_status_of_the_api_is_drawn(job: Any, width: int) -> None:
    drawn_well(job, width, timedelta(minutes=1))
