"""A picture has every panel of its dashboard, with the series that its queries returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chart import ROOT
from matplotlib.figure import Figure
from PIL import Image

from headway_api.document import Json
from headway_dashboards.asking import panels
from headway_dashboards.drawing import Curve, shown
from headway_dashboards.pictures import ANY, PARTS, Asker, picture, save

LABELS = {"namespace": "team", "kind": "RLTrainingJob", "job_name": "refunds", "state": "Training"}
LABELS |= {"signal": "TooFewEffectiveSamples"}


class Canned:
    """Answers each query with two series, one of which has NaN values."""

    def ask(self, path: str, **asked: str) -> Json:
        points = [[100.0, "2"], [101.0, "3"]] if path == "query_range" else [101.0, "3"]
        nothing = [[100.0, "NaN"]] if path == "query_range" else [100.0, "NaN"]
        key = "values" if path == "query_range" else "value"
        return {"result": [{"metric": LABELS, key: points}, {"metric": {"job_name": "b"}, key: nothing}]}


def document(board: str) -> Json:
    read: Json = json.loads((ROOT / f"charts/headway/files/dashboards/{board}.json").read_text())
    return read


def drawn(board: str, sections: tuple[str, ...] | None = None) -> Figure:
    chosen = ANY
    return picture(document(board), sections, Asker(Canned(), 100.0, 110.0, chosen))


def words(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.texts}


@pytest.mark.parametrize("board", PARTS)
def test_each_panel_that_is_not_folded_is_drawn_in_one_picture(board: str) -> None:
    folded = {each["title"] for row in document(board)["panels"] for each in row.get("panels", ())}
    expected = {each["title"] for each in panels(document(board))} - folded
    found = [words(drawn(board, sections)) for _, sections in PARTS[board]]
    assert expected <= set.union(*found)
    assert all("not a screenshot of Grafana" in " ".join(each) for each in found)


def test_the_newest_value_is_in_the_legend() -> None:
    figure = drawn("sandboxes", ("Pool",))
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    labels = {text.get_text() for legend in legends for text in legend.get_texts()}
    assert "refunds waiting   3" in labels
    assert "b waiting   -" in labels


def test_no_word_of_a_table_is_in_the_next_column() -> None:
    figure = drawn("job", ("Health",))
    figure.canvas.draw()  # the cells have no position before drawing
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    tables = [table for axes in figure.axes for table in axes.tables]
    assert len(tables) == 2
    for table in tables:
        for cell in table.get_celld().values():
            text = cell.get_text().get_window_extent(renderer)
            assert text.x1 <= cell.get_window_extent(renderer).x1, cell.get_text().get_text()


def test_a_picture_is_a_small_file(tmp_path: Path) -> None:
    save(drawn("sandboxes"), tmp_path / "sandboxes.png")
    assert Image.open(tmp_path / "sandboxes.png").size[0] > 1000
    assert (tmp_path / "sandboxes.png").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.051, "percentunit", "5.1 %"),
        (1.5, "currencyUSD", "$1.5"),
        (0.02, "s", "20 ms"),
        (75.0, "s", "75 s"),
        (1770.0, "s", "29.5 min"),
        (12345.0, "short", "12.3 K"),
        (0.0003, "suffix: nat", "0.0003 nat"),
        (float("nan"), "s", "-"),
    ],
)
def test_numbers_have_their_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_panel_without_data_says_so() -> None:
    class Silent:
        def ask(self, path: str, **asked: str) -> Json:
            return {"result": []}

    chosen = ANY
    figure = picture(document("sandboxes"), ("Pool",), Asker(Silent(), 100.0, 110.0, chosen))
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    panels_drawn = [each for each in document("sandboxes")["panels"] if each["type"] != "row"]
    assert texts
    assert set(texts) == {"No data"}
    assert len(texts) <= len(panels_drawn)


def test_no_line_is_drawn_over_points_that_are_missing() -> None:
    at, values = Curve("a", {}, [0.0, 1.0, 2.0, 8.0, 9.0], [5.0, 6.0, 7.0, 8.0, 9.0]).with_gaps(1.0)
    assert at == [0.0, 1.0, 2.0, 8.0, 8.0, 9.0]
    assert [value for value in values if value == value] == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert values[3] != values[3], "no number"


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, "20 s"), (600.0, "2 min")])
def test_a_long_time_is_shown_in_minutes(seconds: float, expected: str) -> None:
    figure = picture(document("sandboxes"), ("Pool",), Asker(Canned(), 100.0, 100.0 + seconds, ANY))
    figure.canvas.draw()
    ticks = {tick.get_text() for axes in figure.axes for tick in axes.get_xticklabels()}
    assert expected in ticks
