"""Metric names made of names that users chose: no two collide, and none changes when others are added."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import finished_evaluation as job
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.comparison import compare_all
from headway_analysis.measures import tasks
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.catalogue import catalogue
from headway_analysis.measures.metrics import evaluation
from headway_analysis.measures.names import NAME_LENGTH, apart
from headway_analysis.report.document import document
from headway_coordinator.metrics import evaluations
from headway_coordinator.metrics.evaluations import Publisher, metrics, shown_measure, shown_task, usable


@given(st.lists(st.text(max_size=80), unique=True, min_size=2, max_size=4))
def test_no_two_names_make_the_same_metric(names: list[str]) -> None:
    for shown in (list(map(apart, names)), list(map(usable, names))):
        assert len(set(shown)) == len(names)
    assert all(len(apart(name)) <= NAME_LENGTH and len(usable(name)) <= 120 for name in names)


def test_a_valid_name_is_kept() -> None:
    assert (apart("field_accuracy"), usable("refund, late"[:6])) == ("field_accuracy", "refund")
    assert apart("field accuracy") == "field_accuracy_2a5fcc2a"


def test_punctuation_tells_metrics_apart() -> None:
    tries = [
        dataclasses.replace(each, metrics={"f-1": 1.0, "f 1": 0.0, "f_1": 0.5})
        for each in job.tries()["base"]
    ]
    measures = catalogue(tries, [1])
    means = {
        name: measure.sample(tries).mean for name, measure in measures.items() if name.startswith("metric_")
    }
    assert means["metric_f_1"] == 0.5
    assert sorted(means.values()) == [0.0, 0.5, 1.0]


def test_punctuation_tells_curves_of_tasks_apart() -> None:
    found = tasks.shown("val", {"a-b": {"reward": 1.0}, "a b": {"reward": 0.0}, "a_b": {"reward": 0.5}})
    assert found["val/task_reward/a_b"] == 0.5
    assert sorted(found.values()) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("task", ["mean", "std", "min", "max", "failed_share", "pass_k_1"])
def test_a_task_overwrites_no_metric_in_mlflow(task: str) -> None:
    tries = {
        name: [dataclasses.replace(each, place=dataclasses.replace(each.place, task=task)) for each in of]
        for name, of in job.tries().items()
    }
    report = document(job.finished(), compare_all(tries, job.KS, "base", None, priced(job.BOOK)))
    found = metrics(report["candidates"][0], report)
    assert f"eval/reward/{task}" not in found
    assert f"eval/reward/{shown_task(task)}" in found


@pytest.mark.parametrize("end", ["low", "high", "p_holm"])
def test_a_metric_overwrites_no_end_of_an_interval_in_mlflow(end: str) -> None:
    """An environment may report `risk` and `risk_low`.

    In MLflow the lower bound of `risk` is `risk_low` too.
    """
    tries = {
        name: [
            dataclasses.replace(each, metrics={"risk": each.index / 4, f"risk_{end}": 70.0 + each.index})
            for each in of
        ]
        for name, of in job.tries().items()
    }
    report = document(job.finished(), compare_all(tries, job.KS, "base", None, priced(job.BOOK)))
    tuned = next(each for each in report["candidates"] if each["name"] == "tuned")
    found, measures = metrics(tuned, report), tuned["measures"]["all"]
    if end != "p_holm":
        assert found[f"eval/metric_risk_{end}"] == measures["metric_risk"][end]
    assert found[f"eval/difference/metric_risk_{end}"] == report["differences"]["metric_risk"]["tuned"][end]
    assert found[f"eval/{shown_measure(f'metric_risk_{end}')}"] == measures[f"metric_risk_{end}"]["value"]


def test_the_suffix_of_a_metric_is_not_a_task() -> None:
    """A metric of that form that is added later must be added to this test too."""
    found = evaluation(job.groups("base"), job.KS, job.THRESHOLD, "eval", max_turns=job.MAX_TURNS)
    measures = catalogue(job.tries()["base"], job.KS, priced(job.BOOK))
    parts = [name.split("/") for name in found]
    behind = {each[2] for each in parts if len(each) == 3 and each[1] in measures}
    assert behind
    assert all(map(evaluations.TAKEN.fullmatch, behind))


def test_a_candidate_that_mlflow_refuses_stops_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[str] = []

    class Partly(Publisher):
        def __init__(self) -> None:
            report = {"candidates": [{"name": name, "tries": 1} for name in ("base", "tuned", "big")]}
            self._content = cast(Any, type("Content", (), {"report": report}))

        def _log_metrics(self, candidate: Mapping[str, Any], parent: Any) -> Any:
            if candidate["name"] == "tuned":
                raise OSError("the name is too long")
            sent.append(candidate["name"])
            return candidate["name"]

        def _episodes(self, run: Any, candidate: Mapping[str, Any], limit: int) -> None:
            sent.append(f"traces of {candidate['name']}")

    Partly().candidates(cast(Any, None))
    assert sent == ["base", "big", "traces of base", "traces of big"]
    assert "mlflow-failed" in caplog.text
