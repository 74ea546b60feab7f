"""The price books under examples/ and on docs/prices.md are valid, and agree with each other."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
import yaml

from headway_api import names
from headway_api.price_file import parse
from headway_api.prices import DEFAULT

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "prices").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_config_map_with_a_book(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    assert found["kind"] == "ConfigMap"
    book = parse(found["data"][names.PRICES_KEY].encode())
    assert all(entry.source for entry in book.entries)


def test_the_built_in_book_matches_the_managed_service_example() -> None:
    [path] = [path for path in EXAMPLES if path.stem == "managed-service"]
    book = parse(yaml.safe_load(path.read_text())["data"][names.PRICES_KEY].encode())
    theirs = book.of("hf://Qwen/Qwen3-8B").on(date(2026, 2, 1)).prices.by_class()
    ours = DEFAULT.on(date(2026, 2, 1)).prices.by_class()
    assert {name: price for name, price in theirs.items() if price is not None}.items() <= ours.items()


def test_the_book_on_the_page_is_one() -> None:
    [block] = re.findall(r"```yaml\n(name: .*?)```", (ROOT / "docs" / "prices.md").read_text(), re.S)
    assert parse(block.encode()).of("hf://Qwen/Qwen3-32B").entries[0].prices.train == "1.40"
