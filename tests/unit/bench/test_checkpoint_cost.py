"""The page measures a checkpoint's cost by comparison with steps without a checkpoint."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from bench.learner import checkpoint
from bench.learner.checkpoint import (
    AT_ONCE,
    BESIDE,
    BITS,
    LINK_AT_ONCE,
    LINK_BESIDE,
    NONE,
    ROUNDS,
    VOCABULARY,
    WAYS,
    Link,
    Step,
    _Pointer,
    in_turn,
    section,
)
from bench.learner.work import Ours, model_of
from bench.support.model import SMALL

from headway_api.store import FileStore
from headway_trainer.ranks import Ranks

MEBIBYTE = 1 << 20
SLOWED = 1.2
"""Factor by which an upload slows down a step."""
LONGER = ["0.0%", "25.0%", "50.0%", "25.0%", "150.0%"]
STEPS = 2


def rounds(*paces: float) -> dict[str, list[list[Step]]]:
    """Blocks of steps on a machine whose speed differs between rounds."""
    return {
        NONE: [[Step(2.0 * pace), Step(2.0 * pace)] for pace in paces],
        BESIDE: [[Step(2.0 * SLOWED * pace, 0.1 * pace, 1.0 * pace)] * 2 for pace in paces],
        AT_ONCE: [[Step(2.0 * pace, 1.0 * pace, 1.0 * pace)] * 2 for pace in paces],
        LINK_BESIDE: [[Step(2.0 * SLOWED * pace, 0.1 * pace, 2.0 * pace)] * 2 for pace in paces],
        LINK_AT_ONCE: [[Step(2.0 * pace, 3.0 * pace, 3.0 * pace)] * 2 for pace in paces],
    }


def test_upload_counts_as_step_slowdown_standstill_as_wait_copy() -> None:
    table, _ = section(rounds(1.0, 1.0, 1.0), size=MEBIBYTE * 188, parameters=10**7).tables
    none, beside, once, link_beside, link_once = table.rows
    assert [row["checkpoint"] for row in table.rows] == list(WAYS)
    assert [row["step s"] for row in table.rows] == [2.0, 2.4, 2.0, 2.4, 2.0]
    assert [row["pause s"] for row in table.rows] == [0.0, 0.1, 1.0, 0.1, 3.0]
    assert [row["step + pause s"] for row in table.rows] == [2.0, 2.5, 3.0, 2.5, 5.0]
    assert [row["longer than without"] for row in table.rows] == LONGER
    assert (link_beside["durable after s"], link_once["durable after s"]) == (2.0, 3.0)
    assert (none["durable after s"], beside["durable after s"], once["durable after s"]) == ("", 1.0, 1.0)
    assert "188 MiB, 1.6 s over 1 Gbit/s" in table.caption


def test_a_machine_that_slows_down_adds_no_checkpoint_cost() -> None:
    table, saved = section(rounds(1.0, 1.5, 3.0), size=MEBIBYTE, parameters=10**7).tables
    assert [row["longer than without"] for row in table.rows] == LONGER
    assert table.rows[1]["in each round"] == "25%, 25%, 25%"
    assert saved.rows[1]["in each round"] == "2.00, 2.00, 2.00"


def test_each_store_has_a_row_of_what_is_saved() -> None:
    _, saved = section(rounds(1.0, 1.0), size=MEBIBYTE, parameters=10**7).tables
    assert [row["store"] for row in saved.rows] == ["a folder", "1 Gbit/s"]
    assert [row["beside training / without"] for row in saved.rows] == ["1.25", "1.25"]
    assert [row["at once / without"] for row in saved.rows] == ["1.50", "2.50"]
    assert [row["at once / beside training"] for row in saved.rows] == ["1.20", "2.00"]


def test_a_link_takes_the_time_its_bytes_would_and_no_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(checkpoint.time, "sleep", slept.append)
    (tmp_path / "state").write_bytes(bytes(BITS // 8000))
    Link().upload(tmp_path / "state", f"file://{tmp_path}/there")
    assert (tmp_path / "there").stat().st_size == BITS // 8000
    assert slept == [pytest.approx(1e-3)]


def test_each_variant_runs_equally_early_and_late_in_rounds() -> None:
    orders = [in_turn(number) for number in range(ROUNDS)]
    assert all(sorted(order) == sorted(WAYS) for order in orders)
    assert len({sum(order.index(way) for order in orders) for way in WAYS}) == 1
    assert len({tuple(order) for order in orders}) == ROUNDS


def test_the_page_counts_the_model_that_is_measured() -> None:
    parameters = sum(parameter.numel() for parameter in model_of(SMALL, VOCABULARY).parameters())
    page = " ".join(section(rounds(1.0), size=1, parameters=parameters).read)
    assert "12.3 M parameters" in page


class Files:
    """An engine that can only write a checkpoint's files."""

    updates = 1

    def save(self, folder: Path) -> Path:
        (folder / "state").mkdir()
        (folder / "state" / "weights.pt").write_text("weights")
        return folder / "state"


@pytest.mark.parametrize(("wait", "durable_before"), [(False, [-1, 0]), (True, [0, 1])])
def test_a_step_runs_beside_or_after_the_previous_steps_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool, durable_before: list[int]
) -> None:
    steps_begun = threading.Semaphore(0)

    class Held(_Pointer):
        def seal(self, *what: Any) -> None:
            assert wait or steps_begun.acquire(timeout=20), "durable before a step ran beside it"
            super().seal(*what)

    def step() -> None:
        newest.append(max(block._moved.at, default=-1))
        # The upload of the last checkpoint has no step beside it.
        steps_begun.release(1 if len(newest) < STEPS else 2)

    monkeypatch.setattr(checkpoint, "_Pointer", Held)
    monkeypatch.setattr(checkpoint, "STEPS", STEPS)
    newest: list[int] = []
    ours = SimpleNamespace(engine=Files(), ranks=Ranks(0, 0, 1, None))
    block = checkpoint._Block(cast(Ours, ours), step, tmp_path, FileStore())
    taken = block.steps(wait=wait)
    assert newest == durable_before
    assert all(each.durable is not None and each.durable > 0 for each in taken)
    assert block.size() > len("weights")
