"""A budget too small for a group of an evaluation is refused before the coordinator requests resources."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from role_keys import KEYS
from simulated_evaluations import SUITE, Case, elsewhere, served
from toy_tokenizer import tokenizer

from headway_api import prices
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.records import Purpose
from headway_api.spec.lifecycle import BudgetSpec
from headway_api.store import FileStore
from headway_coordinator.budget.account import NoPrices, Prices
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.priced import Priced
from headway_coordinator.dataset import Slot
from headway_coordinator.evaluation.bounds import episode_limits, fits, kinds
from headway_coordinator.evaluation.job import EvalCoordinator
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group import Plan
from headway_coordinator.ledger.segments import Ledger

JOB = Case(
    "",
    (
        served("base"),
        served("large", "hf://org/large"),
        elsewhere("far"),
        {"name": "again", "rescore": {"uri": "s3://b/run", "step": 3}},
    ),
    spec={"suites": [SUITE | {"epochs": 3}]},
    sets={"large": 1},
).config
CONTEXTS = {"base": 1000, "large": 4000}
RETRIES, TURNS, MAX_TOKENS, SIZE = 2, 6, 512, 2


def budget(known: Prices | None = None, **spec: Any) -> Budget:
    return Budget(BudgetSpec.model_validate(spec), known or NoPrices())


def test_every_kind_of_group_is_checked() -> None:
    found = {kind.what: kind for kind in kinds(JOB, CONTEXTS)}
    assert [*found] == [
        "a group of 2 episodes of candidate base",
        "a group of 3 episodes of candidate base on a sample of suite general",
        "a group of 2 episodes of candidate large",
        "a group of 3 episodes of candidate large on a sample of suite general",
        "a group of 2 episodes of candidate far",
        "a group of 3 episodes of candidate far on a sample of suite general",
        "a group of 2 episodes of candidate again",
    ]
    base, suite = [*found.values()][:2]
    assert (base.limits.context_length, base.limits.turns, base.limits.retries) == (1000, TURNS, RETRIES)
    assert (suite.limits.turns, suite.size) == (None, 3), "the loop of a suite's task is its own"
    assert [kind.bill.sampled_by for kind in found.values()][-2:] == ["endpoint", "nobody"]
    assert found["a group of 2 episodes of candidate large"].bill.model == "hf://org/large"
    assert found["a group of 2 episodes of candidate far"].bill.model == "frontier-9"


def test_candidate_with_unknown_context_is_left_to_the_gate() -> None:
    assert [kind.what for kind in kinds(JOB, {"base": 1000}) if "large" in kind.what] == []


def test_the_messages_minimum_budget_fits_every_group() -> None:
    """The suite has the largest need: 32 contexts of the model with the longer context an episode."""
    with pytest.raises(JobError) as raised:
        fits(budget(tokens={"evaluation": 1_000}), JOB, CONTEXTS)
    termination = raised.value.termination
    assert (termination.reason, termination.field) == ("BudgetTooSmall", "spec.budget.tokens.evaluation")
    assert termination.message.startswith(
        "a group of 3 episodes of candidate large on a sample of suite general may"
    )
    least = int(termination.message.split("write ")[1].split(" or more")[0])
    with pytest.raises(JobError, match=f"{least}"):
        fits(budget(tokens={"evaluation": least - 1}), JOB, CONTEXTS)
    assert fits(budget(tokens={"evaluation": least}), JOB, CONTEXTS) == (
        "a group of each candidate fits every limit"
    )


def test_money_is_counted_at_each_candidates_own_prices(tmp_path: Path) -> None:
    book = prices.PriceBook.model_validate(
        {
            "name": "ours",
            "entries": [
                {
                    "since": "2026-01-01",
                    "prices": {"evaluationPrefill": "1", "evaluationSample": "1"},
                    "models": {"hf://org/large": {"evaluationPrefill": "1000"}},
                }
            ],
        }
    )
    ledger = Ledger(FileStore(), Layout(f"file://{tmp_path}", "ns", "j", "u"))
    known = Priced(ledger, lambda: book)
    alone = Case("", (served("base"), served("large", "hf://org/large")), sets={"large": 1}).config
    with pytest.raises(JobError) as raised:
        fits(budget(known, usd="0.1"), alone, {"base": 1000, "large": 1000})
    termination = raised.value.termination
    assert termination.field == "spec.budget.usd"
    assert "of candidate large may use up to 12." in termination.message
    assert fits(budget(known, usd="0.1"), alone, {"base": 1000}).endswith("fits every limit")


async def test_only_budgets_under_which_no_group_begins_are_refused() -> None:
    """The check and the gate use the same limits, and so the same worst case."""
    alone = Case("", (served("base"),)).config
    [kind] = kinds(alone, CONTEXTS)
    sampled = kind.limits.sampled(MAX_TOKENS, None)
    [shortfall] = budget(tokens={"evaluation": 1}).least(kind.limits, kind.bill, kind.size, sampled)
    plan = Plan(Slot(0, 0, 0), Purpose.EVALUATION, 0, {}, SIZE, Sampling(1.0, 1.0, MAX_TOKENS), 1)
    for limit, begins in ((int(shortfall.needed), True), (int(shortfall.needed) - 1, False)):
        found = budget(tokens={"evaluation": limit})
        waits = found.group(plan, kind.bill, episode_limits(alone.spec, 1000, None), sampled)
        if begins:
            async with waits as held:
                assert sum(Counter(held.reservation()).values()) >= shortfall.needed
            fits(found, alone, CONTEXTS)
            continue
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), waits:
                pass
        with pytest.raises(JobError):
            fits(found, alone, CONTEXTS)


def job(folder: Path, **blocks: Any) -> EvalConfig:
    """A job with files in `folder`. Its model has a context of 512 tokens."""
    tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    (folder / "t.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    base = f"file://{folder}/model"
    spec = {
        "candidates": [{"name": "base", "model": {"base": base}}],
        "data": {"uri": f"file://{folder}/t.jsonl"},
        "agent": {"builtin": {"maxTurns": 4}},
        "environment": {"image": "i", "entrypoint": "m:C"},
        "evaluation": {"sampling": {"maxTokens": 20}},
        "rollout": {"maxRetries": 0},
        "output": {"uri": f"file://{folder}/out"},
    }
    resolved = {"name": "base", "kind": "Model", "base": base, "dtype": "float32", "serverSet": 0}
    return EvalConfig.model_validate(
        {"name": "job", "namespace": "ns", "uid": "u", "spec": spec | blocks, "candidates": [resolved]}
    )


class ClaimedError(Exception):
    """Raised when the coordinator requests sandboxes."""


async def ended(one: EvalConfig, folder: Path, previous: st.RLEvalJobStatus | None = None) -> Any:
    """Run a coordinator that fails when it requests a sandbox. Returns its error and its last status."""
    written: list[dict[str, Any]] = []
    it = EvalCoordinator(one, KEYS, FileStore(), folder / "cache", written.append, previous=previous, port=0)

    async def claimed(*_: object) -> None:
        raise ClaimedError

    it._claimed = claimed  # type: ignore[method-assign, assignment]
    with pytest.raises((JobError, ClaimedError)) as raised:
        await it.run()
    return raised.value, written[-1]


async def test_a_job_is_refused_before_it_requests_servers(tmp_path: Path) -> None:
    error, status = await ended(job(tmp_path, budget={"tokens": {"evaluation": 2047}}), tmp_path)
    assert isinstance(error, JobError)
    assert error.permanent
    assert error.termination.reason == "BudgetTooSmall"
    assert "write 2128 or more" in error.termination.message, (
        "four turns of 512 tokens, and 20 sampled in each"
    )
    assert status["preflight"]["state"] == "Failed"
    check = status["preflight"]["checks"][-1]
    assert (check["name"], check["passed"], check["field"]) == (
        "Budget",
        False,
        "spec.budget.tokens.evaluation",
    )
    assert "progress" not in status


@pytest.mark.parametrize("blocks", [{"budget": {"tokens": {"evaluation": 2128}}}, {}])
async def test_a_job_whose_budget_suffices_goes_on(tmp_path: Path, blocks: dict[str, Any]) -> None:
    error, status = await ended(job(tmp_path, **blocks), tmp_path)
    assert isinstance(error, ClaimedError)
    assert [check["name"] for check in status["preflight"]["checks"]] == ["PriceBook", "Dataset"] + [
        "Budget"
    ] * len(blocks)


async def test_a_job_that_has_begun_is_not_refused(tmp_path: Path) -> None:
    """The budget may have been lowered since. Then it is exhausted, and the measures so far stay."""
    previous = st.RLEvalJobStatus.model_validate(
        {"progress": {"groups": 1, "ofGroups": 2, "updatedTime": "2026-11-01T00:00:00Z"}}
    )
    error, _ = await ended(job(tmp_path, budget={"tokens": {"evaluation": 1}}), tmp_path, previous)
    assert isinstance(error, ClaimedError)
