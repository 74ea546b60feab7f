"""Tokens of judges, endpoints and candidates are counted, priced and shown by model."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal, localcontext
from pathlib import Path

import finished_evaluation
import pytest
from episodes import a_group
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.billing.segments import by_name, decode, encode, fold, total
from headway_api import prices
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig, Identity
from headway_api.prices import DatedPrices, PriceBook, Prices, cost_by_day
from headway_api.records import GroupRecord, Judgement, Purpose, UsageClass, UsageEvent
from headway_api.status import ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator.ledger import costs, events, export
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import MAX_UNPRICED, NAME_LENGTH, usage, without_price

QWEN = "hf://Qwen/Qwen3-32B"
FOLDER = "s3://b/runs/ns/train/u/weights/000012"
FULL = ResolvedCandidate(
    name="tuned", kind="Weights", base=FOLDER, trained_from=QWEN, step=12, uri=FOLDER, server_set=0
)
UNTRAINED = ResolvedCandidate(name="tuned-base", kind="Model", base=QWEN, server_set=1)
OTHER = ResolvedCandidate(name="other", kind="Model", base="hf://org/other", server_set=2)
JOB = Identity(name="job", namespace="ns", uid="uid", kind="RLEvalJob")
DAY = date(2026, 2, 1)
BOOK = PriceBook(
    name="ours",
    entries=(
        DatedPrices(
            since=date(2026, 1, 1),
            prices=Prices(judge_sample="2", evaluation_sample="3", sandbox_seconds="0"),
            models={
                "gpt-x": Prices(judge_sample="7", endpoint_prompt="1", endpoint_sample="10"),
                "hf://Qwen/*": Prices(evaluation_sample="6", evaluation_prefill="1"),
            },
        ),
    ),
)
KEYS = st.builds(
    prices.of,
    st.sampled_from([name for name in UsageClass if name is not UsageClass.ACCELERATOR_SECONDS]),
    st.sampled_from([None, "gpt-x", "gpt-y", QWEN]),
)


def evaluated(candidate: str, sampled_by: str, model: str | None) -> GroupRecord:
    group = a_group(f"x-{candidate}-000000", [0.0, 1.0], purpose=Purpose.EVALUATION, retried=1)
    changed = {"candidate": candidate, "sampled_by": sampled_by, "model": model}
    return GroupRecord.model_validate(group.model_dump() | changed)


def asked(model: str | None, tokens: int) -> Judgement:
    return Judgement(judge="style", question="0" * 64, prompt_tokens=tokens, sampled_tokens=1, model=model)


@pytest.mark.parametrize(
    ("sampled_by", "model", "used"),
    [
        ("endpoint", "gpt-x", {"endpointPrompt:gpt-x", "endpointSample:gpt-x"}),
        ("endpoint", None, {"endpointPrompt", "endpointSample"}),
        (
            "servers",
            QWEN,
            {f"{name}:{QWEN}" for name in ("evaluationPrefill", "evaluationSample", "discarded")},
        ),
        ("servers", None, {"evaluationPrefill", "evaluationSample", "discarded"}),
    ],
)
def test_a_candidates_turns_are_billed_to_its_model(
    sampled_by: str, model: str | None, used: set[str]
) -> None:
    found = events.of_group(evaluated("one", sampled_by, model))
    [(_, amounts)] = by_name(fold(found), {})
    assert {name for name in amounts if "cached" not in name.lower()} == used | {"sandboxSeconds"}
    unnamed = events.of_group(evaluated("one", sampled_by, None))
    assert [event.id for event in found] == [event.id for event in unnamed]
    assert total(fold(found)) == total(fold(unnamed))


def judged(*candidates: ResolvedCandidate) -> EvalConfig:
    return finished_evaluation.config().model_copy(update={"candidates": candidates})


def cost_of(model: str | None, book: PriceBook) -> Decimal:
    """The cost of a candidate's group whose tokens belong to this model."""
    used = fold(events.of_group(evaluated("one", "servers", model)))
    return cost_by_day(by_name(used, {}), book)


@pytest.mark.parametrize("others", [(), (OTHER,)])
def test_full_weights_cost_what_their_base_costs(others: tuple[ResolvedCandidate, ...]) -> None:
    job = judged(FULL, UNTRAINED, *others)
    book = BOOK.of(job.model)
    tuned, base = (cost_of(job.priced_as(each), book) for each in (FULL, UNTRAINED))
    assert tuned == base != cost_of(FOLDER, BOOK)


def test_a_job_of_an_older_release_keeps_its_prices() -> None:
    """The job's old config has no `trainedFrom`, and its ledger names the weights' folder as the model."""
    stored = json.loads(judged(FULL, UNTRAINED).model_dump_json(by_alias=True, exclude_none=True))
    del stored["candidates"][0]["trainedFrom"]
    job = EvalConfig.model_validate(stored)
    assert job.model == ""
    assert [job.priced_as(each) for each in job.candidates] == [FOLDER, QWEN]


def test_judges_are_billed_separately_through_a_restart(tmp_path: Path) -> None:
    layout = Layout(f"file://{tmp_path}", "ns", "job", "uid")
    ledger = Ledger(FileStore(), layout)
    ledger.judgements("a", [asked("gpt-x", 20), asked("gpt-y", 3), asked("gpt-x", 5), asked(None, 2)], 1.0)
    [(_, amounts)] = ledger.used()
    assert amounts == {
        "judgePrompt:gpt-x": 25,
        "judgeSample:gpt-x": 2,
        "judgePrompt:gpt-y": 3,
        "judgeSample:gpt-y": 1,
        "judgePrompt": 2,
        "judgeSample": 1,
    }
    again = Ledger(FileStore(), layout)
    again.load()
    assert again.used() == ledger.used()
    assert total(again.days)[UsageClass.JUDGE_PROMPT] == 30


def test_a_segment_of_the_older_format_is_still_read() -> None:
    line = {"id": "t0/judge-0/judgeSample", "usage_class": "judgeSample", "quantity": 10**6, "at": 1.0}
    older = f"{json.dumps(line)}\n".encode()
    [event] = decode(older)
    assert event.model is None
    assert json.loads(encode([event])) == line
    days = fold([event])
    assert days == {date(1970, 1, 1): {UsageClass.JUDGE_SAMPLE: 10**6}}
    assert cost_by_day(by_name(days, {}), BOOK) == 2
    assert cost_by_day(by_name(days, {}), BOOK.of("gpt-x")) == 7


def test_records_of_the_older_format_are_still_read() -> None:
    group = evaluated("one", "endpoint", "gpt-x").model_dump(mode="json")
    del group["model"]
    assert GroupRecord.model_validate(group).model is None
    judgement = asked("gpt-x", 3).model_dump(mode="json")
    del judgement["model"]
    assert Judgement.model_validate(judgement).model is None


@given(
    st.dictionaries(
        st.dates(date(2025, 12, 1), date(2026, 12, 31)),
        st.dictionaries(KEYS, st.integers(1, 10**12)),
        max_size=4,
    )
)
def test_the_sum_over_models_is_the_total_to_the_last_digit(used: dict[date, dict[str, int]]) -> None:
    book = BOOK.of("hf://Qwen/Qwen3-8B")
    days = {day: {name: float(much) for name, much in amounts.items()} for day, amounts in used.items()}
    named = by_name(days, {})
    whole = cost_by_day(named, book)
    parts = costs.by_model(named, book)
    with localcontext(prices.EXACT):
        assert sum(parts.values(), Decimal(0)) == whole
        for kind, amount in costs.by_kind(named, book).items():
            assert sum((cost for (of, _), cost in parts.items() if of == kind), Decimal(0)) == amount
    assert sum(total(days).values()) == sum(sum(amounts.values()) for amounts in used.values())


@given(st.lists(st.tuples(KEYS, st.integers(1, 10**9)), max_size=30))
def test_totals_of_events_do_not_depend_on_their_models(found: list[tuple[str, int]]) -> None:
    recorded = [
        UsageEvent(
            id=str(number),
            usage_class=UsageClass(prices.class_of(key)),
            quantity=much,
            at=1.0,
            model=prices.whose(key),
        )
        for number, (key, much) in enumerate(found)
    ]
    unnamed = [event.model_copy(update={"model": None}) for event in recorded]
    assert decode(encode(recorded) or b"\n") == recorded
    assert total(fold(recorded)) == total(fold(unnamed))


def ledger_of(folder: Path) -> tuple[FileStore, Layout, Ledger]:
    store, layout = FileStore(), Layout(f"file://{folder}", "ns", "job", "uid")
    ledger = Ledger(store, layout)
    ledger.load()
    ledger.group(evaluated("mine", "servers", QWEN))
    ledger.group(evaluated("frontier", "endpoint", "gpt-x"))
    ledger.judgements("a", [asked("gpt-x", 20), asked("gpt-y", 5)], 1_700_000_000.0)
    return store, layout, ledger


def row_of(rows: list[Mapping[str, str]], sku: str) -> Mapping[str, str]:
    [found] = [row for row in rows if row["SkuId"] == sku]
    return found


def test_the_exports_list_usage_by_model(tmp_path: Path) -> None:
    store, layout, ledger = ledger_of(tmp_path)
    export.write(JOB, store, layout, ledger, BOOK)
    rows: list[Mapping[str, str]] = [
        row
        for path in tmp_path.rglob("export/focus/*.csv")
        for row in csv.DictReader(io.StringIO(path.read_text()))
    ]
    priced = row_of(rows, "judgeSample/gpt-x")
    assert (priced["x_Model"], priced["x_UsageClass"], Decimal(priced["ListUnitPrice"])) == (
        "gpt-x",
        "judgeSample",
        7,
    )
    assert row_of(rows, "judgePrompt/gpt-y")["x_Unpriced"] == "true"
    assert Decimal(row_of(rows, f"evaluationSample/{QWEN}")["ListUnitPrice"]) == 6
    with localcontext(prices.EXACT):
        billed = sum((Decimal(row["BilledCost"]) for row in rows if row["BilledCost"]), Decimal(0))
    assert billed == cost_by_day(ledger.used(), BOOK) > 0
    data = [
        json.loads(line)["data"]
        for path in tmp_path.rglob("export/cloudevents/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {each.get("model") for each in data if each["class"].startswith("judge")} == {"gpt-x", "gpt-y"}
    assert {each.get("model") for each in data if each["class"] == "sandboxSeconds"} == {None}


def test_status_and_metrics_name_the_model(tmp_path: Path) -> None:
    _, _, ledger = ledger_of(tmp_path)
    shown = usage(ledger.days, BOOK, DAY)
    assert shown.judge_tokens == 27
    assert [name for name in shown.unpriced if name.startswith("judge")] == [
        "judgePrompt:gpt-x",
        "judgePrompt:gpt-y",
    ]
    samples = {
        (one.labels["class"], one.labels["model"]): one.value
        for one in costs.samples(ledger.used(), {}, BOOK)
        if one.name == "cost/usd"
    }
    assert samples["judge", "gpt-x"] == pytest.approx(7e-6)
    assert samples["judge", "gpt-y"] == pytest.approx(2e-6)
    assert samples["judge", ""] == 0
    assert samples["evaluation", QWEN] > 0


def test_status_names_unpriced_models_within_its_bounds() -> None:
    names = [f"judgeSample:{'m' * 200}{number:03d}" for number in range(40)]
    unpriced = without_price(names)
    assert len(unpriced) == MAX_UNPRICED
    assert unpriced[-1] == f"and {40 - MAX_UNPRICED + 1} more"
    assert all(len(name) <= NAME_LENGTH for name in unpriced)
    assert without_price(["acceleratorSeconds:H100", "acceleratorSeconds:A100", "judgeSample:gpt-x"]) == [
        "acceleratorSeconds",
        "judgeSample:gpt-x",
    ]
    exactly = [f"judgeSample:{number}" for number in range(MAX_UNPRICED)]
    assert without_price(exactly) == sorted(exactly)
