"""`headway cost`: the bill of a stored run equals a recount of its trajectories."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer
from episodes import a_group
from finished_run import NAME, FinishedRun
from stub_cluster import StubCluster, served
from typer.testing import CliRunner, Result

from headway_api.accelerators import Holder
from headway_api.prices import DEFAULT, PriceBook
from headway_api.records import Judgement, Purpose
from headway_cli import bill
from headway_cli.commands.cost import cost
from headway_coordinator.ledger.usage import usage

ROOT = Path(__file__).resolve().parents[3]
app = typer.Typer()
app.command()(cost)


def shown(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def as_json(*words: str) -> dict[str, Any]:
    done = shown(*words, "--output", "json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def book(name: str, models: dict[str, Any] | None = None, **prices: str) -> PriceBook:
    entry = {"since": "2020-01-01", "prices": prices, "models": models or {}}
    return PriceBook.model_validate({"name": name, "entries": [entry]})


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun(tmp_path / "job").job().prices(DEFAULT).played()


def recounted(run: FinishedRun) -> dict[str, Any]:
    """The result of the script that recounts the trajectories and shares no code with the product."""
    sys.path.insert(0, str(ROOT / "hack" / "demo"))
    try:
        from headway_demo.bill import recount
    finally:
        sys.path.remove(str(ROOT / "hack" / "demo"))
    found = recount(run.place)
    return {"by_class": found.by_class, "cost": found.cost}


def test_the_bill_equals_a_recount_of_the_trajectories(run: FinishedRun) -> None:
    found, other = as_json(str(run.folder)), recounted(run)
    counted = {each["class"]: each["quantity"] for each in found["used"] if each["class"] != "sandboxSeconds"}
    assert counted == {name: many for name, many in other["by_class"].items() if many}
    assert found["cost"] == other["cost"]
    assert counted["train"] > 0
    assert counted["discarded"] > 0


def test_the_bill_equals_the_status(run: FinishedRun) -> None:
    found = as_json(run.uri, "--base", "hf://org/base")
    expected = usage(run.ledger.days, DEFAULT.of("hf://org/base"), date(2023, 11, 14))
    assert (found["cost"], found["priceBook"]) == (expected.cost, expected.price_book)
    assert found["priceBookHash"] == DEFAULT.digest[:12]


def test_parts_add_up_and_what_has_no_price_is_named(tmp_path: Path) -> None:
    FinishedRun(tmp_path).job().prices(book("ours", sample="1000", sandboxSeconds="0.5")).played()
    found = as_json(str(tmp_path))
    costs = {each["class"]: each["cost"] for each in found["used"]}
    assert costs["prefill"] is None
    assert sum(Decimal(each) for each in costs.values() if each is not None) == Decimal(found["cost"])
    assert found["unpriced"] == [
        "cachedPrefill",
        "evaluationCachedPrefill",
        "evaluationPrefill",
        "evaluationSample",
        "prefill",
        "train",
    ]
    text = shown(str(tmp_path)).stdout
    assert "not in the cost, because they have no price: cachedPrefill, evaluationCachedPrefill" in text
    assert f"prices ours@2020-01-01, SHA-256 {found['priceBookHash']}" in text
    assert "unpriced" in next(line for line in text.splitlines() if line.startswith("prefill"))


def test_a_class_priced_on_some_days_is_billed_for_those_alone() -> None:
    dated = PriceBook.model_validate(
        {
            "name": "b",
            "entries": [
                {"since": "2026-01-01", "prices": {"train": "1"}},
                {"since": "2026-01-02", "prices": {"sample": "1000000"}},
            ],
        }
    )
    days = [(date(2026, 1, day), {"sample": 2.0}) for day in (1, 2)]
    found = bill.made(days, dated, "", date(2026, 1, 2))
    assert (found.used[0].cost, found.cost, found.unpriced) == ("2.00", "2.00", ("sample",))
    assert found.price_book == "b@2026-01-02"


def test_a_changed_price_book_is_shown_with_its_corrections(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).job().prices(book("ours", sample="1000")).played()
    run.prices(book("ours", sample="1000"), book("ours", sample="2000"))
    found = as_json(str(tmp_path))
    [correction] = found["corrections"]
    assert correction["edition"] == 2
    assert Decimal(correction["after"]) == 2 * Decimal(correction["before"]) == Decimal(found["cost"])
    assert found["priceCorrections"] == 1
    assert f"-> {correction['after']} USD" in shown(str(tmp_path)).stdout


def test_the_estimate_is_shown_beside_the_cost(run: FinishedRun) -> None:
    kept = {"basis": "Data", "cost": ["0.10", "0.20", "0.30"]}
    run.store.put(run.layout.estimate("data"), json.dumps(kept).encode())
    run.store.put(run.layout.estimate("preflight"), json.dumps({"basis": "Preflight", "cost": None}).encode())
    run.job(status={"estimate": {"basis": "Running", "low": "1.00", "likely": "2.00", "high": "3.00"}})
    assert [(each["basis"], each["likely"]) for each in as_json(str(run.folder))["estimates"]] == [
        ("Data", "0.20"),
        ("Preflight", None),
        ("Running", "2.00"),
    ]
    text = shown(str(run.folder)).stdout
    assert "estimate by Data, of the whole job: 0.20 USD (0.10 to 0.30)" in text
    assert "estimate by Preflight, of the whole job: unknown" in text


def test_accelerators_are_billed_by_product(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path).job().prices(book("ours", acceleratorSeconds="0.01"))
    at = datetime(2026, 11, 3, tzinfo=UTC).timestamp()
    run.ledger.accelerators({Holder("learner", "H100"): 90, Holder("rollout", "H100"): 10}, at)
    assert as_json(str(tmp_path))["used"] == [
        {"class": "acceleratorSeconds:H100", "quantity": 100.0, "cost": "1.00"}
    ]


def test_a_run_that_used_nothing_costs_nothing(tmp_path: Path) -> None:
    FinishedRun(tmp_path).job().prices(DEFAULT)
    found = as_json(str(tmp_path))
    assert (found["used"], found["cost"]) == ([], "0.00")


def test_prices_of_single_models_need_the_runs_own_model(tmp_path: Path) -> None:
    own = book("ours", {"hf://org/*": {"sample": "3000"}}, sample="1000")
    run = FinishedRun(tmp_path).job().prices(own).played()
    done = shown(run.uri)
    assert done.exit_code == 2
    assert "write --base URI, as in spec.model.base" in done.stderr
    named = as_json(run.uri, "--base", "hf://org/base")["cost"]
    assert named == as_json(str(tmp_path))["cost"], "a local job says it"
    assert Decimal(named) == 3 * Decimal(as_json(run.uri, "--base", "s3://b/other")["cost"])
    run.identity()
    assert as_json(run.uri)["cost"] == named, "what a coordinator wrote down says it"


@pytest.mark.parametrize(
    ("job", "model"),
    [
        ({}, None),
        ({"spec": {"model": {"base": "hf://a/b"}}}, "hf://a/b"),
        ({"kind": "RLEvalJob", "spec": {"candidates": [{"checkpoint": {"job": "j"}}]}}, None),
        ({"kind": "RLEvalJob", "spec": {"candidates": [{"model": {"base": "x"}}, {"endpoint": {}}]}}, "x"),
        ({"kind": "RLEvalJob", "spec": {"candidates": []}, "candidates": [{"base": "x"}, {"base": "y"}]}, ""),
        ({"kind": "RLEvalJob", "spec": {"candidates": []}, "candidates": [{"base": "x"}, {}]}, "x"),
        (
            {
                "kind": "RLEvalJob",
                "spec": {"candidates": []},
                "candidates": [{"base": "s3://b/w/000020", "trainedFrom": "x"}, {"base": "x"}],
            },
            "x",
        ),
    ],
)
def test_prices_are_those_of_the_model_all_candidates_share(job: dict[str, Any], model: str | None) -> None:
    assert bill.model_of(job) == model


def test_a_local_evaluations_model_is_the_one_of_its_candidates(tmp_path: Path) -> None:
    own = book("ours", {"hf://org/*": {"evaluationSample": "3000"}}, evaluationSample="1000")
    run = FinishedRun(tmp_path).job(status={"candidates": [{"name": "a", "base": "hf://org/base"}]})
    held_out = a_group("e-a-000000", [1.0], purpose=Purpose.EVALUATION)
    run.prices(own).play(held_out.model_copy(update={"candidate": "a"}))
    raw = json.loads((tmp_path / "job.json").read_text())
    (tmp_path / "job.json").write_text(json.dumps({**raw, "kind": "RLEvalJob"}))
    sampled = sum(turn.sampled_tokens for turn in held_out.episodes[0].turns)
    assert Decimal(as_json(str(tmp_path))["cost"]) == Decimal(3000 * sampled) / 1_000_000


def test_a_torn_segment_is_named_and_nothing_is_billed(run: FinishedRun) -> None:
    torn = next(run.place.rglob("usage/t0-000001.jsonl"))
    torn.write_bytes(torn.read_bytes()[:-5])
    done = shown(str(run.folder))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "t0-000001.jsonl cannot be read: its last line has no line break" in done.stderr


def test_a_duplicate_segment_is_not_billed_twice(run: FinishedRun) -> None:
    segment = next(run.place.rglob("usage/t0-000001.jsonl"))
    segment.with_name("copy.jsonl").write_bytes(segment.read_bytes())
    done = shown(str(run.folder))
    assert done.exit_code == 2
    assert "both have the usage event" in done.stderr


def test_a_judges_tokens_name_their_model(tmp_path: Path) -> None:
    judged = a_group("t0-000000", [1.0, 0.0])
    asked = Judgement(judge="style", question="0" * 64, model="big", prompt_tokens=7, sampled_tokens=3)
    first, *others = judged.episodes
    episodes = [first.model_copy(update={"judgements": [asked]}), *others]
    FinishedRun(tmp_path).job().prices(DEFAULT).play(judged.model_copy(update={"episodes": episodes}))
    found = as_json(str(tmp_path))
    assert {"class": "judgePrompt:big", "quantity": 7.0, "cost": None} in found["used"]
    assert found["unpriced"] == ["judgePrompt:big", "judgeSample:big"]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    monkeypatch.chdir(tmp_path)
    made = StubCluster()
    with served(made, tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        yield made


def test_of_a_job_on_a_cluster_the_status_is_shown(stub: StubCluster) -> None:
    used = {
        "prefillTokens": 10, "trainTokens": 0, "totalTokens": 10, "sandboxSeconds": "1.5", "cost": "0.12",
        "currency": "USD", "priceBook": "b@2026-01-01", "priceBookHash": "abc", "priceCorrections": 2,
        "unpriced": ["judgePrompt"], "priceBookProblem": "it is gone",
    }  # fmt: skip
    estimate = {"basis": "Preflight", "low": "1.00", "likely": "2.00", "high": "3.00"}
    stub.jobs["rltrainingjobs", NAME] = {"status": {"usage": used, "estimate": estimate}}
    found = as_json(NAME)
    assert found["used"] == [
        {"class": "prefillTokens", "quantity": 10.0, "cost": None},
        {"class": "sandboxSeconds", "quantity": 1.5, "cost": None},
    ]
    assert (found["cost"], found["priceCorrections"]) == ("0.12", 2)
    assert found["estimates"] == [estimate]
    text = shown(NAME).stdout
    assert "corrected 2 times by a changed price book" in text
    assert "the current price book is not in force: it is gone" in text


def test_a_job_on_a_cluster_that_used_nothing_says_so(stub: StubCluster) -> None:
    stub.jobs["rlevaljobs", NAME] = {"metadata": {"name": NAME}}
    done = shown(NAME, "--kind", "eval")
    assert done.exit_code == 2
    assert "the job has used nothing yet" in done.stderr


def test_a_reader_that_ends_early_ends_the_command_quietly(run: FinishedRun) -> None:
    program = (
        "import typer; from headway_cli.commands.cost import cost; "
        "app = typer.Typer(pretty_exceptions_enable=False); app.command()(cost); app()"
    )
    command = [sys.executable, "-c", program, str(run.folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 1)
