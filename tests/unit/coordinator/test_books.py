"""Every edition of a price book is kept, and its corrections are recorded before it is in force."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from headway_analysis.billing.segments import Days, Usages, by_name
from headway_api.accelerators import Holder
from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.price_file import parse
from headway_api.prices import DEFAULT, cost_by_day
from headway_api.records import UsageClass
from headway_api.store import FileStore
from headway_coordinator.ledger.books import Books
from headway_coordinator.ledger.usage import usage

MODEL = "hf://Qwen/Qwen3-8B"
DAYS: Days = {date(2026, 2, 1): {UsageClass.SAMPLE: 2_000_000.0}}
USED = by_name(DAYS, {})
TODAY = date(2026, 2, 2)


def text(sample: str, name: str = "ours") -> str:
    return f"name: {name}\nentries:\n- since: 2026-01-01\n  prices: {{sample: {sample}}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "mounted"
    folder.mkdir()
    return folder / "prices.yaml"


def books(tmp_path: Path, file: Path, name: str | None = "ours", model: str = MODEL) -> Books:
    return Books(FileStore(), Layout(f"file://{tmp_path}/store", "ns", "job", "uid"), file, name, model)


def begun(tmp_path: Path, file: Path, used: Usages | None = None) -> Books:
    found = books(tmp_path, file)
    found.first()
    found.begin(used or [])
    return found


def test_without_a_config_map_the_built_in_book_applies(tmp_path: Path, file: Path) -> None:
    found = books(tmp_path, file, name=None)
    assert found.first() == DEFAULT
    found.begin([])
    assert not found.look([])
    assert [each.digest for each in found.editions] == [DEFAULT.digest]
    assert found.problem is None


def test_a_requested_price_book_must_exist(tmp_path: Path, file: Path) -> None:
    with pytest.raises(JobError) as caught:
        books(tmp_path, file).first()
    termination = caught.value.termination
    assert (termination.reason, termination.field) == ("PriceBookMissing", "spec.priceBook")
    assert "ConfigMap ours with key prices.yaml" in termination.message


def test_unreadable_price_book_ends_the_job_before_it_begins(tmp_path: Path, file: Path) -> None:
    file.write_text(text("-1"))
    with pytest.raises(
        JobError, match=r"ConfigMap ours, key prices.yaml: entries\[0\].prices.sample"
    ) as caught:
        books(tmp_path, file).first()
    assert caught.value.termination.reason == "PriceBookInvalid"


def test_a_changed_price_corrects_past_usage_and_is_reported(tmp_path: Path, file: Path) -> None:
    file.write_text(text("3"))
    found = begun(tmp_path, file)
    before = usage(DAYS, found.now, TODAY, found)
    file.write_text(text("1.5"))
    assert found.look(USED)
    after = usage(DAYS, found.now, TODAY, found)
    assert (before.cost, after.cost) == ("6.00", "3.00")
    [correction] = found.corrections
    assert (Decimal(correction.before or 0), Decimal(correction.after or 0)) == (6, 3)
    assert after.price_corrections == 1
    assert after.price_book_hash == found.whole.digest[:12] != before.price_book_hash


def test_an_edition_without_past_changes_is_no_correction(tmp_path: Path, file: Path) -> None:
    file.write_text(text("3"))
    found = begun(tmp_path, file)
    file.write_text(text("3") + "- since: 2026-03-01\n  prices: {sample: 1}\n")
    assert found.look(USED)
    assert found.corrections == []
    assert len(found.editions) == 2


@pytest.mark.parametrize("broken", [None, "name: [", text("-1")])
def test_a_removed_or_broken_book_changes_no_price(tmp_path: Path, file: Path, broken: str | None) -> None:
    file.write_text(text("3"))
    found = begun(tmp_path, file)
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    assert found.look(USED)
    shown = usage(DAYS, found.now, TODAY, found)
    assert shown.cost == "6.00"
    assert "stays in force" in (shown.price_book_problem or "")
    assert not found.look(USED), "the problem is reported once"
    file.write_text(text("3"))
    assert found.look(USED)
    assert found.problem is None
    assert len(found.editions) == 1


def test_a_successor_uses_the_last_edition(tmp_path: Path, file: Path) -> None:
    file.write_text(text("3"))
    begun(tmp_path, file)
    file.unlink()
    later = books(tmp_path, file)
    later.first()
    later.begin(USED)
    assert usage(DAYS, later.now, TODAY, later).cost == "6.00"
    assert len(later.editions) == 1


def test_a_change_between_two_coordinators_is_a_correction(tmp_path: Path, file: Path) -> None:
    file.write_text(text("3"))
    begun(tmp_path, file)
    file.write_text(text("1"))
    later = begun(tmp_path, file, USED)
    assert [(each.number, each.before, each.after) for each in later.corrections] == [(2, "6", "2")]
    assert usage(DAYS, later.now, TODAY, later).cost == "2.00"


def test_two_coordinators_share_one_sequence_of_editions(tmp_path: Path, file: Path) -> None:
    file.write_text(text("3"))
    one, other = begun(tmp_path, file), begun(tmp_path, file)
    file.write_text(text("1"))
    assert one.look(USED)
    assert other.look(USED)
    assert one.editions == other.editions


def test_a_models_own_prices_apply_to_its_job(tmp_path: Path, file: Path) -> None:
    file.write_text(text("3") + "  models: {hf://Qwen/*: {sample: 5}}\n")
    found = begun(tmp_path, file)
    assert usage(DAYS, found.now, TODAY, found).cost == "10.00"
    other = books(tmp_path / "other", file, model="s3://models/mine")
    other.first()
    assert usage(DAYS, other.now, TODAY, other).cost == "6.00"


def test_each_accelerator_product_has_its_own_price() -> None:
    day = date(2026, 2, 1)
    content = text("0").replace("{sample: 0}", "{acceleratorSeconds: 1, accelerators: {H100: 2, T4: 0.5}}")
    book = parse(content.encode())
    held = {
        day: {Holder("learner", "H100"): 10.0, Holder("rollout", "T4"): 4.0, Holder("rollout", "L4"): 3.0}
    }
    used = by_name({day: {UsageClass.ACCELERATOR_SECONDS: 17.0}}, held)
    assert cost_by_day(used, book) == 20 + 2 + 3
    alone = parse(content.replace("acceleratorSeconds: 1, ", "").encode())
    shown = usage({day: {UsageClass.ACCELERATOR_SECONDS: 17.0}}, alone, TODAY, used=used)
    assert (shown.cost, shown.unpriced) == ("22.00", ["acceleratorSeconds"])


def test_a_stored_book_keeps_the_prices_of_its_models(tmp_path: Path, file: Path) -> None:
    prices = "prices: {sample: 1, train: 2, discarded: 3}"
    file.write_text(
        f"name: ours\nentries:\n- since: 2026-01-01\n  {prices}\n  models: {{'{MODEL}': {{sample: 5}}}}\n"
    )
    before = begun(tmp_path, file)
    file.unlink()
    found = books(tmp_path, file)
    found.first()
    used = [(TODAY, {"sample": 10**6, "train": 10**6, "discarded": 10**6})]
    assert cost_by_day(used, found.now) == cost_by_day(used, before.now) == 5 + 2 + 3
