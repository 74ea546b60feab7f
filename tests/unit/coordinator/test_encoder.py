"""An `Encoder` gives renderers the same tokens as the tokenizer itself."""

from __future__ import annotations

from typing import Any

import pytest
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator.trajectory import encoder
from headway_coordinator.trajectory.encoder import Encoder
from headway_coordinator.trajectory.render import PROBE_TOOLS, PROBES


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


class Counting:
    """A tokenizer that records each text it encodes."""

    def __init__(self, tok: Any) -> None:
        self._tok = tok
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tok, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        self.asked.append(text)
        return list(self._tok.encode(text, **options))


def test_a_text_is_not_encoded_twice(tok: Any) -> None:
    from renderers import config_from_name, create_renderer

    counting = Counting(tok)
    ours: Any = Encoder(counting)
    rendering, plain = (create_renderer(each, config_from_name("qwen3")) for each in (ours, tok))
    for probe in PROBES:
        expected = plain.render_ids(probe, tools=PROBE_TOOLS, add_generation_prompt=True)
        assert rendering.render_ids(probe, tools=PROBE_TOOLS, add_generation_prompt=True) == expected
    asked = len(counting.asked)
    assert asked
    for probe in PROBES:
        rendering.render_ids(probe, tools=PROBE_TOOLS, add_generation_prompt=True)
    assert len(counting.asked) == asked


def test_long_texts_are_not_cached_and_results_are_copies(tok: Any) -> None:
    counting = Counting(tok)
    ours, long = Encoder(counting), "x " * encoder.LONGEST
    for text, times in ((long, 2), ("short", 1)):
        counting.asked.clear()
        first = ours.encode(text, add_special_tokens=False)
        first.append(-1)
        assert ours.encode(text, add_special_tokens=False) == tok.encode(text, add_special_tokens=False)
        assert len(counting.asked) == times
