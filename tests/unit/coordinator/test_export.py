"""Exports of a ledger in a store. Independent code counts the segments again."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from episodes import a_group

from headway_api import prices
from headway_api.accelerators import Holder
from headway_api.artifacts import Layout
from headway_api.config import Identity
from headway_api.exits import JobError
from headway_api.store import FileStore
from headway_coordinator.ledger import export
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import usage

JOB = Identity(name="job", namespace="ns", uid="uid", kind="RLTrainingJob", labels={"team": "returns"})


def a_ledger(folder: Path) -> tuple[FileStore, Layout, Ledger]:
    store, layout = FileStore(), Layout(f"file://{folder}", "ns", "job", "uid")
    ledger = Ledger(store, layout)
    ledger.load()
    for number in range(3):
        ledger.group(a_group(f"t0-{number:06d}", [0.0, 1.0]))
    ledger.accelerators({Holder("learner", "H100"): 90}, datetime(2026, 11, 3, 12, tzinfo=UTC).timestamp())
    return store, layout, ledger


def recount(folder: Path) -> Decimal:
    """The total cost: each event's quantity at the default book's price, from the segments' text."""
    a_million = {"prefill": "0.13", "cachedPrefill": "0.026", "sample": "0.40"}
    found = Decimal(0)
    with localcontext(prices.EXACT):
        for path in folder.rglob("usage/*.jsonl"):
            for event in map(json.loads, path.read_text().splitlines()):
                found += Decimal(a_million.get(event["usage_class"], "0")) * Decimal(str(event["quantity"]))
        return found / 1_000_000


def rows(folder: Path) -> list[dict[str, str]]:
    return [
        row
        for path in folder.rglob("export/focus/*.csv")
        for row in csv.DictReader(io.StringIO(path.read_text()))
    ]


def test_the_table_equals_a_recount_of_the_segments(tmp_path: Path) -> None:
    store, layout, ledger = a_ledger(tmp_path)
    assert export.write(JOB, store, layout, ledger, prices.DEFAULT) == len(ledger.days) == 2
    with localcontext(prices.EXACT):
        known = [row["BilledCost"] for row in rows(tmp_path) if row["x_Unpriced"] == "false"]
        billed = sum(map(Decimal, known), Decimal(0))
    assert billed == recount(tmp_path) > 0
    day = datetime(2026, 11, 3, tzinfo=UTC).date()
    assert prices.shown(billed) == usage(ledger.days, prices.DEFAULT, day).cost
    assert len([*tmp_path.rglob("export/focus/*.parquet")]) == 2


def test_repeated_exports_contain_every_event_once(tmp_path: Path) -> None:
    store, layout, ledger = a_ledger(tmp_path)
    for _ in range(2):
        export.write(JOB, store, layout, ledger, prices.DEFAULT)
    events = [
        json.loads(line) for path in tmp_path.rglob("export/cloudevents/*.jsonl") for line in path.open()
    ]
    keys = [(each["source"], each["id"]) for each in events]
    assert len(set(keys)) == len(keys)
    assert {each["id"] for each in events} == {event.id for event in ledger.events()}
    (held,) = (each["data"] for each in events if each["data"]["class"] == "acceleratorSeconds")
    assert held == {
        "class": "acceleratorSeconds", "quantity": 90, "role": "learner", "product": "H100",
        "labels": {"team": "returns"},
    }  # fmt: skip


def test_unreadable_segment_is_named_and_nothing_is_exported(tmp_path: Path) -> None:
    store, layout, ledger = a_ledger(tmp_path)
    torn = next(tmp_path.rglob("usage/t0-000001.jsonl"))
    torn.write_bytes(torn.read_bytes()[:-5])
    with pytest.raises(JobError, match=r"t0-000001\.jsonl cannot be read"):
        export.write(JOB, store, layout, ledger, prices.DEFAULT)
    assert rows(tmp_path) == []
