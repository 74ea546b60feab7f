"""The comparison of snapshots in the survival test detects entries that were taken back."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from ledger_snapshots import Books, amounts, counted_twice, faults, tokens
from pydantic.alias_generators import to_camel

from headway_api.records import UsageClass
from headway_api.status import Usage

BEFORE = Books(
    objects={"trajectories/train/t-1.json.gz": "aa", "steps/000001.json": "bb"},
    acknowledged={"steps/000001.json": ("t-1",)},
    usage={"sampleTokens": Decimal(10), "cost": Decimal("0.0010")},
)
GROWN = Books(
    objects={**BEFORE.objects, "steps/000002.json": "cc"},
    acknowledged={**BEFORE.acknowledged, "steps/000002.json": ("t-2",)},
    usage={"sampleTokens": Decimal(12), "cost": Decimal("0.0010"), "trainTokens": Decimal(3)},
)


def test_books_that_grow_are_in_order() -> None:
    assert faults(BEFORE, GROWN) == []
    resumed = replace(GROWN, objects={**GROWN.objects, "steps/000001.json": "a newer incarnation"})
    assert faults(BEFORE, resumed) == []


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        (replace(GROWN, objects={"steps/000001.json": "bb"}), "trajectories/train/t-1.json.gz has vanished"),
        (replace(GROWN, objects={**BEFORE.objects, "trajectories/train/t-1.json.gz": "zz"}), "has changed"),
        (replace(GROWN, acknowledged={"steps/000001.json": ("t-9",)}), r"no longer \('t-1',\)"),
        (replace(GROWN, usage={**GROWN.usage, "sampleTokens": Decimal(9)}), "sampleTokens fell from 10 to 9"),
        (replace(GROWN, usage={}), "cost fell from 0.0010 to 0"),
    ],
)
def test_an_entry_that_was_taken_back_is_named(after: Books, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        assert not (found := faults(BEFORE, after)), found


def test_an_event_in_two_segments_is_counted_twice() -> None:
    event = {"id": "t-1-0-0/0/sample", "usage_class": "sample", "quantity": 4.0}
    other = {"id": "t-1-0-0/1/sample", "usage_class": "evaluationSample", "quantity": 1.0}
    assert counted_twice([event, other]) == []
    assert counted_twice([event, other, event]) == ["t-1-0-0/0/sample"]


def test_the_ledgers_tokens_have_the_classes_of_the_status() -> None:
    one = {"quantity": 1.0}
    found = tokens([{"id": str(each), "usage_class": each.value, **one} for each in UsageClass])
    shown = {
        to_camel(name.removesuffix("_tokens")) for name in Usage.model_fields if name.endswith("_tokens")
    }
    assert set(found) == shown
    assert sum(found.values()) == len(UsageClass) - 2, "seconds are not tokens"
    assert found["judge"] == 2


def test_entries_that_are_not_amounts_are_left_out() -> None:
    used = Usage(
        cost="1.50", price_book="ours@2026-01-01", price_book_hash="a" * 12, price_book_problem="gone"
    )
    found = amounts({"status": {"usage": used.as_object()}})
    assert found["cost"] == Decimal("1.50")
    assert found["priceCorrections"] == 0
