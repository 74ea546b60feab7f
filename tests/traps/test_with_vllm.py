"""With its tiny model in a real vLLM, each fault of the quickstart's desk is found, and the desk has none."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from rollout_server import RolloutServer
from tests.traps.desk import CONTEXT, DESK, MAX_TOKENS, ROOT, TRAPS
from tests.traps.judge import ALARMS, ALL, judged
from tests.traps.trap import Trap
from tests.traps.with_vllm import base_model, model
from transformers import AutoTokenizer

from headway_sandbox.testing import Report

sys.path.insert(0, str(ROOT / "hack" / "demo"))
from headway_demo import quickstart
from headway_demo.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]
TRAINED = [trap for trap in TRAPS if trap.habit != "untrained"]
UNTRAINED = [trap for trap in TRAPS if trap.habit == "untrained"]


def trained() -> Path:
    """The demo's base model. If the cache lacks it, making it takes a minute."""
    return quickstart.inputs(Settings.from_environ({}).cache, 0) / "model"


def untrained(folder: Path) -> Path:
    """The same model before any training."""
    tokenizer = AutoTokenizer.from_pretrained(trained())
    tokenizer.save_pretrained(folder)
    base_model.make_model(len(tokenizer), 0).save_pretrained(folder)
    return folder


def served(folder: Path, weights: Path) -> Iterator[RolloutServer]:
    block = {"contextLength": CONTEXT, "lora": {"rank": 8, "alpha": 16}}
    with RolloutServer(folder, weights, model=block) as server:
        server.wait_ready(600)
        yield server


@pytest.fixture(scope="module")
def clerk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutServer]:
    yield from served(tmp_path_factory.mktemp("clerk"), trained())


@pytest.fixture(scope="module")
def novice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutServer]:
    weights = untrained(tmp_path_factory.mktemp("weights"))
    yield from served(tmp_path_factory.mktemp("novice"), weights)


def report_of(server: RolloutServer, trap: Trap | None, *checks: str) -> Report:
    """The checks' report if this server's model plays."""
    tokenizer = AutoTokenizer.from_pretrained(trained())
    limit = int((trap.facts if trap else {}).get("max_tokens", MAX_TOKENS))
    return judged(
        DESK,
        trap,
        checks=checks or ALL,
        model=model(server, tokenizer, limit),
        tokens=lambda text: len(tokenizer.encode(text)),
    )


@pytest.mark.parametrize("trap", TRAINED, ids=operator.attrgetter("name"))
def test_a_fault_of_the_desk_is_named(clerk: RolloutServer, trap: Trap) -> None:
    report = report_of(clerk, trap, trap.check)
    assert report.of(trap.check).verdict in ALARMS, f"{trap.says}\n{report}"


@pytest.mark.parametrize("trap", UNTRAINED, ids=operator.attrgetter("name"))
def test_a_model_without_a_foothold_is_named(novice: RolloutServer, trap: Trap) -> None:
    report = report_of(novice, trap, trap.check)
    assert report.of(trap.check).verdict in ALARMS, f"{trap.says}\n{report}"


def test_the_desk_as_it_is_raises_no_alarm(clerk: RolloutServer) -> None:
    report = report_of(clerk, None)
    assert not report.named(*ALARMS), str(report)
    assert not report.broken
