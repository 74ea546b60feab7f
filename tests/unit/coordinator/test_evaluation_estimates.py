"""An evaluation's estimated cost until its end, with the real driver, ledger and coordinator."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from finished_evaluation import config as finished_config
from simulated_evaluations import CASES, Case, Killed, Simulated, elsewhere, served
from toy_tokenizer import tokenizer

from headway_analysis.estimate import prompts
from headway_analysis.estimate.candidates import parts_of
from headway_analysis.estimate.made import Made, no_less
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.prices import DEFAULT, Tariff
from headway_api.sandbox_api import ResetReply
from headway_api.store import FileStore
from headway_coordinator.estimate.prompts import lengths
from headway_coordinator.evaluation import candidates, first_prompts
from headway_coordinator.evaluation.candidates import Readable, readable_models
from headway_coordinator.evaluation.estimates import EvalEstimates, done_of, section_starts
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.trajectory import render

SHOWN = Decimal("0.0001")
"""The unit in dollars to which shown amounts are rounded."""
EARLY = 0.2
"""Share of the episodes after which the likely cost must be near the actual one."""
NEAR = 0.2
"""Maximum error of the likely cost then, as a share of the actual cost."""
FIRST = ResetReply(
    messages=[{"role": "system", "content": "You look things up."}, {"role": "user", "content": "a"}],
    tools=[],
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_the_actual_cost_is_in_the_range_from_the_start(case: Case, tmp_path: Path) -> None:
    one = Simulated(case, tmp_path)
    await one.live()
    actual, early = one.cost, 0
    assert actual > 0
    assert [each.made.basis for each in one.shown[:1]] == ["Data"]
    for each in one.shown:
        low, likely, high = each.ends
        assert low <= likely <= high
        assert low >= each.cost - SHOWN, "never below the bill"
        if each.made.basis == "Running" or not case.accelerators:
            assert low - SHOWN <= actual <= high + SHOWN, each.share
        if each.share >= EARLY:
            early += 1
            assert abs(likely - actual) <= Decimal(NEAR) * actual, each.share
    assert early >= 15
    assert one.shown[-1].ends == (round(actual, 4),) * 3


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_the_range_narrows(case: Case, tmp_path: Path) -> None:
    """The range need not narrow with every group, because a new candidate may differ from the others."""
    one = Simulated(case, tmp_path)
    await one.live(every=0.1)

    def width(share: float) -> Decimal:
        low, _, high = next(each.ends for each in one.shown if each.share >= share)
        return high - low

    assert width(0) > width(0.5) > width(0.9) > width(1) == 0


async def test_accelerators_are_listed_as_unpriced_until_measured(tmp_path: Path) -> None:
    case = next(each for each in CASES if each.accelerators)
    one = Simulated(case, tmp_path)
    await one.live()
    assert [each.made.unpriced for each in one.shown[:1]] == [["acceleratorSeconds"]]
    running = [each for each in one.shown if each.made.basis == "Running"]
    assert all(each.made.unpriced == [] for each in running)
    assert "acceleratorSeconds:H100" in running[-1].made.usage


async def test_judges_are_listed_as_unpriced_until_first_asked(tmp_path: Path) -> None:
    one = Simulated(next(each for each in CASES if each.judged), tmp_path)
    await one.live()
    assert one.shown[0].made.unpriced == ["judgePrompt", "judgeSample"]
    assert all(each.made.unpriced == [] for each in one.shown if each.made.basis == "Running")


async def test_a_successors_estimate_continues_from_the_bill(tmp_path: Path) -> None:
    """The successor keeps the first estimate, which was made from the data."""
    case = CASES[2]
    one = Simulated(case, tmp_path)
    one.dies_at = 0.4
    with pytest.raises(BaseExceptionGroup) as died:
        await one.live()
    assert died.group_contains(Killed)
    before, written = one.shown[-1], one.store.get(one.layout.estimate("data"))
    one.shown.clear()
    await one.live()
    again = one.shown[0]
    assert again.made.basis == "Running"
    assert 0.38 <= again.share <= 0.6, "what runs when it is killed may end yet"
    assert again.ends[0] >= one.shown[0].cost - SHOWN
    for mine, theirs in zip(again.ends, before.ends, strict=True):
        assert float(mine) == pytest.approx(float(theirs), rel=0.15)
    assert one.store.get(one.layout.estimate("data")) == written
    assert one.shown[-1].ends == (round(one.cost, 4),) * 3


async def test_a_failed_candidate_adds_no_remaining_cost(tmp_path: Path) -> None:
    one = Simulated(CASES[2], tmp_path)
    one.fails = "reference"
    await one.live()
    failed = one.evaluation.state.candidates["reference"]
    assert failed.stage == "Failed"
    assert len(failed.tries) < one.case.rows
    assert one.shown[-1].ends == (round(one.cost, 4),) * 3
    first = next(each for each in one.shown if each.made.basis == "Running")
    assert first.ends[1] > Decimal("1.4") * one.cost, "half of the dear candidate is not played"


async def test_a_billed_group_does_not_count_as_remaining_too(tmp_path: Path) -> None:
    """The ledger has the group a moment before the candidate's state does."""
    one = Simulated(CASES[0], tmp_path)
    await one.live()
    state = one.evaluation.state
    whole = one.estimates.progress(state)
    group = sorted(state.candidates["base"].tries)[-1]
    tries = state.candidates["base"].tries.pop(group)
    assert one.estimates.progress(state).left == (1,)
    one.estimates._tally.fresh.add(f"e-base-{group:06d}")
    assert one.estimates.progress(state) == whole
    state.candidates["base"].tries[group] = tries
    assert one.estimates.progress(state) == whole
    assert one.estimates._tally.fresh == set(), "it is remembered no longer than it is of use"


def test_samples_of_suites_are_estimated_from_the_rows() -> None:
    suite = {"task": "p/t", "image": "i"}
    two = [{"name": "one", "limit": 5, **suite}, {"name": "two", "limit": 3, **suite}]
    job = Case("", (served("base"),), spec={"suites": two}).config
    assert section_starts(job, 10) == [0, 10, 15]
    assert section_starts(Case("", (served("base"),)).config, 10) == [0]
    candidate = CandidateState("base", tries={0: [], 9: [], 10: [], 15: [], 17: []})
    state = EvalState({"base": candidate}, rows=10)
    parts = parts_of(job, 10, {})
    assert done_of(parts, [0, 1, 2], section_starts(job, 10), state) == [2, 1, 2]
    assert done_of(parts, [0, 1, 2], section_starts(job, 10), state, {"e-base-000012"}) == [2, 2, 2]


def _tariff() -> Tariff:
    return Tariff(DEFAULT)


def estimates(folder: Path, job: EvalConfig, previous: st.Estimate | None = None) -> EvalEstimates:
    layout, store = Layout(f"file://{folder}", "ns", "j", "u"), FileStore()
    return EvalEstimates(job, layout, store, Ledger(store, layout), _tariff, previous)


def test_data_only_estimate_is_reported_with_its_reason(tmp_path: Path) -> None:
    job = Case("", (served("base"), elsewhere("far"))).config
    made = estimates(tmp_path, job)
    assert made.status(None) is None
    assert [*made.samples(None)] == []
    made.before(50, {}, "the tokenizer of base is not available")
    estimate = made.status(None)
    assert estimate is not None
    assert (estimate.basis, estimate.message) == ("Data", "the tokenizer of base is not available")
    assert estimate.unpriced == ["endpointPrompt", "endpointSample"]
    assert estimate.endpoint_tokens > 0
    assert estimate.evaluation_tokens > 0
    assert estimate.train_tokens == 0
    assert [sample.labels["bound"] for sample in made.samples(None)] == ["low", "likely", "high"]
    report = made.report(st.Usage(cost="1"))
    assert [each["basis"] for each in report["made"]] == ["Data"]
    json.dumps(report)


def test_a_job_without_a_candidate_has_no_estimate(tmp_path: Path) -> None:
    job = Case("", (served("base"),)).config.model_copy(update={"candidates": ()})
    made = estimates(tmp_path, job)
    made.before(50, {})
    state = EvalState({"base": CandidateState("base")}, rows=50)
    made.show(made.look(made.progress(state)))
    assert made.newest() is None
    assert made.report(st.Usage())["made"] == []


def test_no_bound_of_the_estimate_is_below_the_bill() -> None:
    made = Made(
        basis="Data", time=datetime(2026, 11, 1, tzinfo=UTC), cost=("0.10", "0.50", "2.00"), price_book="b"
    )
    assert no_less(made, Decimal("0.7")).cost == ("0.70", "0.70", "2.00")
    assert no_less(made, Decimal("0.05")).cost == made.cost
    blank = made.model_copy(update={"cost": None})
    assert no_less(blank, Decimal(9)) == blank


class Shouting:
    """A tokenizer that makes twice as many tokens of every text."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def render(self, messages: Any, tools: Any) -> list[int]:
        found: list[int] = self.of.render(messages, tools)
        return found * 2


@pytest.fixture
def renderer(tmp_path: Path) -> render.Renderer:
    tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    return render.load(tmp_path / "model", "auto")[0]


def test_unavailable_models_prompts_are_estimated_from_others(renderer: render.Renderer) -> None:
    job = Case("", (served("base"), served("large", "hf://org/large"), elsewhere("far"))).config
    rows = [{"prompt": "a"}, {"prompt": "a" * 60}]
    models = {"base": Readable(renderer, 512, "a template")}
    found = first_prompts.openings(job, FIRST, models, rows)
    base, large, far = (found[name] for name in ("base", "large", "far"))
    assert base.prompt is not None
    mean = sum(lengths(FIRST, renderer, rows, None, None)) / 2
    assert (base.prompt.low, base.prompt.high, base.context_length) == (mean, mean, 512)
    assert large.prompt == far.prompt
    assert far.prompt is not None
    assert (far.prompt.low, far.prompt.likely, far.prompt.high) == (mean / 1.5, mean, mean * 1.5)
    assert far.context_length is None
    assert prompts.unknown(job, models) == "the tokenizer of large is not available"
    loud = models | {"large": Readable(Shouting(renderer), 512, "a template")}  # type: ignore[arg-type]
    both = first_prompts.openings(job, FIRST, loud, rows)["far"].prompt
    assert both is not None
    assert (both.low, both.likely, both.high) == (mean / 1.5, mean * 1.5, 2 * mean * 1.5)
    assert prompts.unknown(job, loud) == ""


def test_without_any_tokenizer_bytes_are_counted() -> None:
    job = Case("", (elsewhere("far"),)).config
    short, long = (
        first_prompts.openings(job, FIRST, {}, [{"prompt": text}, {"prompt": text}])["far"].prompt
        for text in ("a", "a" * 400)
    )
    assert short is not None
    assert long is not None
    assert short == long, "the environment says how the first row begins, and rows differ by their text"
    grown = first_prompts.openings(job, FIRST, {}, [{"prompt": "a"}, {"prompt": "a" * 801}])["far"].prompt
    assert grown is not None
    assert grown.likely - short.likely == pytest.approx(400 / prompts.BYTES)
    assert grown.low < grown.likely < grown.high
    assert first_prompts.openings(job, FIRST, {}, [])["far"].prompt is None


def test_models_are_read_before_any_server_is_made(tmp_path: Path, renderer: render.Renderer) -> None:
    """An unavailable model is left out. Its candidate fails later, when its turn comes."""
    base = f"file://{tmp_path}/model"
    job = EvalConfig.model_construct(
        **{
            **dict(finished_config()),
            "candidates": tuple(
                st.ResolvedCandidate(name=name, kind="Model", base=of, context_length=length, server_set=0)
                for name, of, length in (
                    ("tuned", base, 9999),
                    ("base", base, None),
                    ("gone", f"file://{tmp_path}/nowhere", None),
                )
            ),
        }
    )
    found = readable_models(job, FileStore(), tmp_path / "cache")
    assert {name: each.context_length for name, each in found.items()} == {"base": 512}


def test_an_unavailable_hub_is_asked_once_before_the_job(
    tmp_path: Path, renderer: render.Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing model delays nothing. An unavailable hub would delay the start, so it is asked only once."""
    asked: list[str] = []

    def fetch(model: Any, *_: object, **__: object) -> Path:
        asked.append(model.base)
        if model.base == "hf://org/small":
            return tmp_path / "model"
        raise JobError("ModelNotFetched", "away", permanent=model.base == "hf://org/wrong")

    monkeypatch.setattr(candidates, "fetch", fetch)
    names = ("wrong", "small", "away", "large")
    job = Case("", tuple(served(name, f"hf://org/{name}") for name in names)).config
    assert [*readable_models(job, FileStore(), tmp_path)] == ["small"]
    assert asked == ["hf://org/wrong", "hf://org/small", "hf://org/away"]
