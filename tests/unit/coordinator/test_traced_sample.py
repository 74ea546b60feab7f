"""Some episodes of every step of a training job become traces, and the same ones after each restart."""

from __future__ import annotations

from collections import Counter

import pytest
import written_run
from episodes import a_group

from headway_analysis.measures.tries import Rules
from headway_api.records import Purpose
from headway_api.run_files import RunFiles
from headway_api.store import FileStore
from headway_coordinator.metrics import otel, sample, traces
from headway_coordinator.metrics.sample import best_and_worst, episodes, evenly
from headway_coordinator.metrics.traces import Traced


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> written_run.Made:
    """A run of 20 steps with three groups each. Five of its steps have a validation on 12 rows."""
    return written_run.write(tmp_path_factory.mktemp("run"), steps=20, groups=3, size=4, every=5)


def chosen(made: written_run.Made) -> list[Traced]:
    spec = written_run.config(made.layout).spec
    return [*episodes(RunFiles(FileStore(), made.layout), spec)]


def counted(found: list[Traced], purpose: Purpose) -> Counter[int]:
    """Number of chosen episodes of this purpose, by step."""
    return Counter(each.when[1] for each in found if each.when is not None and each.when[0] is purpose)


def test_each_validation_and_each_step_has_traces(made: written_run.Made) -> None:
    found = chosen(made)
    assert counted(found, Purpose.VALIDATION) == dict.fromkeys((0, 5, 10, 15, 20), 12)
    trained = counted(found, Purpose.TRAIN)
    assert set(trained) == set(range(1, 21))
    assert max(trained.values()) <= 2 * sample.GROUPS_OF_STEP
    assert {each.episode.group_id for each in found if each.when == (Purpose.TRAIN, 1)} == {
        "t0-000003",
        "t0-000005",
    }, "the first group and the last"
    assert len({each.episode.episode_id for each in found}) == len(found)


def test_a_restarted_coordinator_chooses_the_same_episodes(made: written_run.Made) -> None:
    assert chosen(made) == chosen(made)


def test_the_number_of_traces_of_a_long_run_is_bounded(
    made: written_run.Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MAX_VALIDATED", 7)
    monkeypatch.setattr(sample, "MAX_STEPS", 3)
    found = chosen(made)
    assert counted(found, Purpose.VALIDATION) == dict.fromkeys((0, 5, 10, 15, 20), 1)
    assert set(counted(found, Purpose.TRAIN)) == {1, 11, 20}
    monkeypatch.setattr(sample, "MAX_VALIDATED", 2)
    assert counted(chosen(made), Purpose.VALIDATION) == {0: 1, 20: 1}


@pytest.mark.parametrize(
    ("rewards", "indices"),
    [
        ([0.5, 1.0, 0.0, 1.0, 0.0], [1, 2]),
        ([1.0, 1.0], [0]),
        ([None, 0.25, 0.75], [2, 1]),
        ([None, None], []),
    ],
)
def test_a_group_shows_its_best_and_its_worst_episode(
    rewards: list[float | None], indices: list[int]
) -> None:
    group = a_group("t0-000000", rewards, step=0)
    assert [episode.index for _, episode in best_and_worst(group, Rules())] == indices


@pytest.mark.parametrize(("count", "limit", "found"), [(3, 5, [0, 1, 2]), (9, 3, [0, 4, 8]), (0, 2, [])])
def test_items_are_chosen_evenly(count: int, limit: int, found: list[int]) -> None:
    assert evenly(range(count), limit) == found


def test_a_trace_has_the_purpose_of_its_episode(made: written_run.Made) -> None:
    first = chosen(made)[0]
    assert first.name == "validation 0, row 0, try 0"
    tags = {key: first.tags[key] for key in ("purpose", "step", "row", "try")}
    assert tags == {"purpose": "validation", "step": "0", "row": "0", "try": "0"}
    assert "candidate" not in first.tags


def test_a_trace_has_different_ids_in_mlflow_and_opentelemetry(made: written_run.Made) -> None:
    """One server may receive both traces, and would merge traces with the same id."""
    episode = chosen(made)[0].episode
    assert traces.trace_id("uid", episode) != otel.trace_id("uid", episode.episode_id).hex()
