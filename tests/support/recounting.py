"""Imports hack/recount_eval.py as a module, and makes a table of tries as that script reads it."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import finished_evaluation as job
import pyarrow.parquet as pq
import pytest

from headway_analysis.measures.candidate import priced
from headway_analysis.measures.tries import Try
from headway_analysis.report.table import parquet, table
from headway_api.prices import PriceBook

SCRIPT = Path(__file__).parents[2] / "hack" / "recount_eval.py"


@cache
def recount_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recount_eval", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec.loader.exec_module(module)
    return module


def lines(
    tries: Mapping[str, Iterable[Try]] | None = None, book: PriceBook = job.BOOK
) -> list[dict[str, Any]]:
    """The rows of results.parquet."""
    written = parquet(table(tries or job.tries(), priced(book)))
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(written)).to_pylist()
    return found
