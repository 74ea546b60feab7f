"""A price book as people write it is read unchanged, or refused with the entry, the field and the fix."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from headway_api.bounds import MIB
from headway_api.price_file import PriceBookError, parse
from headway_api.prices import DEFAULT, Tariff, cost_by_day, unpriced

GOOD = """\
name: ours
entries:
- since: 2026-01-01
  source: the cluster's own cost
  prices: {prefill: 0.13, sample: 0.40, sandboxSeconds: 0}
  models:
    hf://Qwen/*: {sample: 1}
    hf://Qwen/Qwen3-8B: {sample: "2"}
- since: 2026-03-01
  prices: {sample: 9}
"""


def test_prices_are_taken_as_they_are_written() -> None:
    prices = parse(GOOD.encode()).entries[0].prices
    assert (prices.prefill, prices.sample, prices.sandbox_seconds) == ("0.13", "0.40", "0")


@pytest.mark.parametrize(
    ("model", "sample"),
    [("hf://Qwen/Qwen3-8B", "2"), ("hf://Qwen/Qwen3-14B", "1"), ("s3://models/mine", "0.40"), ("", "0.40")],
)
def test_the_longest_name_that_fits_a_model_decides(model: str, sample: str) -> None:
    first, second = parse(GOOD.encode()).of(model).entries
    assert first.prices.sample == sample
    assert first.prices.prefill == "0.13", "what a model's own prices do not name is the entry's"
    assert second.prices.sample == "9"


def test_a_class_that_has_no_price_is_not_free() -> None:
    used = [(date(2026, 2, 1), {"train": 5, "sandboxSeconds": 7.5, "discarded": 3, "sample": 10**6})]
    book = parse(GOOD.encode())
    assert unpriced(used, book) == ["train"]
    assert cost_by_day(used, book) == Decimal("0.40")


def test_the_digest_covers_all_of_a_books_content_and_no_more() -> None:
    book = parse(GOOD.encode())
    assert parse(f"# ours\n{GOOD}".encode()).digest == book.digest
    assert parse(GOOD.replace("0.13", "0.14").encode()).digest != book.digest
    assert parse(GOOD.replace("cluster's", "cloud's").encode()).digest != book.digest
    assert len(DEFAULT.digest) == 64


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.40", "-1", "entries[0].prices.sample: '-1' is not a price; write US dollars of 0 or more"),
        ("0.40", ".nan", "entries[0].prices.sample: '.nan' is not a price"),
        ("0.40", ".inf", "entries[0].prices.sample: '.inf' is not a price"),
        ("0.40", "1e3", "entries[0].prices.sample: '1e3' is not a price"),
        ('"2"', "free", "entries[0].models.hf://Qwen/Qwen3-8B.sample: 'free' is not a price"),
        ("2026-03-01", "2026-01-01", "entries[1].since: 2026-01-01 does not follow 2026-01-01"),
        ("2026-03-01", "2025-12-31", "entries[1].since: 2025-12-31 does not follow 2026-01-01"),
        ("2026-03-01", "March", "entries[1].since: 'March' is not a day; write YYYY-MM-DD"),
        ("prefill:", "prefil:", "entries[0].prices.prefil: no such field"),
        ("- since: 2026-01-01\n  source", "- source", "entries[0].since: is missing"),
        ("hf://Qwen/*", "a*b", "entries[0].models.a*b: write a model's name"),
        ("sample: 0.40", "sample: 0.40, sample: 1", "line 5: 'sample' is written twice"),
        ("the cluster's own cost", "&a x\n  more: *a", "an alias (*name) is not accepted"),
        ("name: ours", "name: [" + "[" * 20, "nested deeper than 8 levels"),
        ("name: ours", "name: [", "not YAML"),
        (GOOD, "", "must be an object with name and entries"),
        (GOOD, "name: x\nentries: []\n", "entries: "),
    ],
)
def test_a_mistake_is_named_with_its_entry_and_field(old: str, new: str, message: str) -> None:
    with pytest.raises(PriceBookError) as caught:
        parse(GOOD.replace(old, new, 1).encode())
    assert message in str(caught.value)


def test_a_file_that_is_not_text_or_too_large_is_refused() -> None:
    with pytest.raises(PriceBookError, match="not UTF-8"):
        parse(b"\xff")
    with pytest.raises(PriceBookError, match="more than"):
        parse(b"#" * (MIB + 1))


def test_many_faults_are_listed_as_some_and_a_number() -> None:
    classes = ", ".join(f"c{number}: 1" for number in range(9))
    with pytest.raises(PriceBookError, match="and 5 more"):
        parse(GOOD.replace("prefill: 0.13", classes).encode())


BY_MODEL = """\
name: ours
entries:
- since: 2026-01-01
  prices: {evaluationSample: 3, judgeSample: 4}
  models:
    hf://Qwen/*: {judgeSample: 50, evaluationSample: 6}
    gpt-*: {endpointSample: 10, judgeSample: 11}
    gpt-x: {endpointSample: 20}
- since: 2026-03-01
  prices: {judgeSample: 9}
  models:
    gpt-x: {endpointSample: 15, judgeSample: 30}
"""
DAY = date(2026, 2, 1)


@pytest.mark.parametrize("job", ["", "hf://Qwen/Qwen3-8B", "gpt-x"])
@pytest.mark.parametrize(
    ("name", "price"),
    [
        ("endpointSample:gpt-x", 20),
        ("endpointSample:gpt-y", 10),
        ("endpointSample:another", None),
        ("judgeSample:gpt-x", 4),
        ("judgeSample:gpt-y", 11),
        ("judgeSample:another", 4),
        ("judgeSample:hf://Qwen/Qwen3-32B", 50),
        ("evaluationSample:hf://Qwen/Qwen3-32B", 6),
        ("evaluationSample:s3://models/mine", 3),
        ("judgePrompt:gpt-x", None),
    ],
)
def test_a_judge_or_candidate_has_its_own_models_prices(job: str, name: str, price: int | None) -> None:
    book = parse(BY_MODEL.encode()).of(job)
    used = [(DAY, {name: 10**6})]
    assert unpriced(used, book) == ([name] if price is None else [])
    assert cost_by_day(used, book) == (price or 0)
    assert Tariff(book).price(name, DAY) == (None if price is None else Decimal(price) / 10**6)


def test_usage_without_a_model_has_the_jobs_models_price() -> None:
    book = parse(BY_MODEL.encode())
    assert Tariff(book, "hf://Qwen/Qwen3-8B").price("judgeSample", DAY) == Decimal(50) / 10**6
    assert Tariff(book).price("judgeSample", DAY) == Decimal(4) / 10**6
    assert Tariff(book.of("hf://Qwen/Qwen3-8B")).price("judgeSample", DAY) == Decimal(50) / 10**6
