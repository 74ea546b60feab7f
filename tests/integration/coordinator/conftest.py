"""Fixtures that the tests of agents share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from guest_stage import Agents
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with ExitStack() as stack:
        yield Agents(tmp_path_factory.mktemp("agents"), stack)
