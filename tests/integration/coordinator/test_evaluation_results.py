"""What a finished evaluation leaves in the artifact store and in a real MLflow server."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import finished_evaluation as job
import mlflow
import pyarrow.parquet as pq
import pytest
from inspect_ai.log import read_eval_log
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowEntity
from mlflow_server import mlflow_server
from ports import free_port
from recounted_episodes import KINDS, REASONS, read, recounted, same, validated

from headway_analysis.billing.segments import fold
from headway_analysis.comparison import Comparison, compare_all
from headway_analysis.measures.candidate import priced
from headway_analysis.measures.tries import Try
from headway_analysis.report import inspect_log
from headway_api.artifacts import Layout
from headway_api.names import EVAL_KIND
from headway_api.records import GroupRecord, Outcome
from headway_api.status import MlflowRun
from headway_api.store import FileStore
from headway_coordinator import page
from headway_coordinator.evaluation import results
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.ledger import events
from headway_coordinator.metrics import evaluations
from headway_coordinator.spool import Spool

ROWS = 4
RECOUNT = Path(__file__).parents[3] / "hack" / "recount_mlflow.py"
NAMES = tuple(job.CHANCE)

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]


@dataclass
class Written:
    """An evaluation whose results two coordinators wrote, one after the other."""

    folder: Path
    run: results.Run
    compared: Comparison
    layout: Layout
    parent: MlflowRun | None = None

    def write(self) -> MlflowRun | None:
        store = FileStore()
        written = results.write(store, self.layout, self.run, self.compared)
        assert page.write(store, self.layout, EVAL_KIND, lambda: None)
        found: list[MlflowRun | None] = [None]
        results.track(store, self.layout, written, found.append)
        return found[-1]

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(FileStore().get(self.layout.report))
        return found


def of(folder: Path, tracking: str | None) -> Written:
    """Put groups into the store, one of them unanswered, and build the state that follows from them."""
    layout = Layout(f"file://{folder}", "ns", "judged", "0123456789abcdef")
    spool, tries, days = Spool(FileStore(), layout), {}, {}
    for name in NAMES:
        groups = [*map(answered, job.groups(name)[: ROWS - 1]), unanswered(job.groups(name)[ROWS - 1])]
        for group in groups:
            spool.put(group)
            days = fold(events.of_group(group), days)
        tries[name] = job.measured(groups)
    changes = {} if tracking is None else {"tracking": {"mlflow": {"uri": tracking}}}
    gone = CandidateState("gone", "Failed", "CandidateMissing", "spec.candidates[gone]: it is not there")
    state = EvalState({name: state_of(name, tries[name]) for name in NAMES} | {"gone": gone}, ROWS)
    price = priced(job.BOOK)
    compared = compare_all({**tries, "gone": []}, job.KS, "base", None, price)
    return Written(folder, results.Run(job.config(**changes), state, days, job.BOOK), compared, layout)


def answered(group: GroupRecord) -> GroupRecord:
    assert group.scored
    return group


def unanswered(group: GroupRecord) -> GroupRecord:
    lost = {"outcome": Outcome.INFRA_ERROR, "reward": None, "score": None, "metrics": {}, "error": "lost"}
    return group.model_copy(update={"episodes": [e.model_copy(update=lost) for e in group.episodes]})


def state_of(name: str, tries: list[Try]) -> CandidateState:
    by_row = {row: [each for each in tries if each.place.row == row] for row in range(ROWS)}
    return CandidateState(name, "Complete", tries=by_row)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        found = of(tmp_path_factory.mktemp("store"), url)
        found.parent = found.write()
        assert found.write() == found.parent, "a successor writes into the same runs"
        yield found


@pytest.fixture
def client(written: Written) -> MlflowClient:
    wanted = written.run.job.spec.tracking.mlflow
    assert wanted is not None
    mlflow.set_tracking_uri(wanted.uri)
    return MlflowClient(wanted.uri)


def runs(written: Written, client: MlflowClient) -> dict[str, MlflowEntity]:
    """The MLflow runs of the candidates. The job's own run is their parent."""
    assert written.parent is not None
    found = client.search_runs([written.parent.experiment_id])
    assert len(found) == 1 + len(NAMES)
    below = [run for run in found if run.data.tags.get("mlflow.parentRunId") == written.parent.run_id]
    return {run.data.tags["headway.dev/candidate"]: run for run in below}


def test_files_lie_where_the_status_says(written: Written) -> None:
    store, layout = FileStore(), written.layout
    assert pq.read_table(io.BytesIO(store.get(layout.results))).num_rows == len(NAMES) * ROWS * job.TRIES
    assert store.get(layout.report_for_people).decode().startswith("# Evaluation ns/judged")
    assert [uri.rpartition("/")[2] for uri in store.list(layout.logs)] == sorted(f"{n}.eval" for n in NAMES)


def test_a_candidates_log_has_every_try_including_lost_groups(written: Written) -> None:
    for name in NAMES:
        log = read_eval_log(str(written.layout.log(name)).removeprefix("file://"))
        assert {sample.uuid for sample in log.samples or []} == {
            each.episode_id for each in written.run.state.candidates[name].all_tries
        }


def test_a_run_for_each_candidate_with_its_metrics(written: Written, client: MlflowClient) -> None:
    """Each run has the report's metrics and its groups' metrics under MTRL's names, and no other metric."""
    found, report = runs(written, client), written.report()
    assert found.keys() == set(NAMES)
    for candidate in report["candidates"]:
        if not candidate["tries"]:
            continue
        name = candidate["name"]
        groups = [*read(written.layout.evaluation_groups(name)), *unanswered_of(written, name)]
        assert len(groups) == ROWS, "with the one that was not answered"
        named = dict(recount_mlflow().expected(name, candidate, report))
        mtrl = recounted(groups, "eval", "eval/episodes", job.MAX_TURNS)
        mtrl |= validated(groups, "eval", job.KS, job.THRESHOLD)
        assert not named.keys() & mtrl.keys()
        same(found[name].data.metrics, named | mtrl)
        for own in ("reward", "external_score"):
            assert mtrl[f"eval/{own}/mean"] == pytest.approx(named[f"eval/{own}"], rel=1e-9)
        lost = mtrl["eval/episodes/outcome_InfraError_rate"]
        assert lost == pytest.approx(named["eval/infra_error"], rel=1e-9)
        assert lost > 1 / ROWS - 1e-9
    assert all(run.info.status == "FINISHED" for run in found.values())
    history = client.get_metric_history(found["tuned"].info.run_id, "eval/external_score")
    assert len(history) == 1, "a successor adds no second point"


def unanswered_of(written: Written, candidate: str) -> list[dict[str, Any]]:
    """The candidate's stored groups without a scored episode."""
    mine = {each.episode_id for each in written.run.state.candidates[candidate].all_tries}
    return [
        group
        for group in read(written.layout.failed_groups)
        if any(episode["episode_id"] in mine for episode in group["episodes"])
    ]


def recount_mlflow() -> ModuleType:
    """Import the recount's script as a module."""
    spec = importlib.util.spec_from_file_location("recount_mlflow", RECOUNT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_episodes_make_every_recounted_metric_differ_from_0(written: Written) -> None:
    """A metric that is always 0 would equal any wrong recount.

    The metrics listed here have no episode that counts.
    """
    counted = [
        recounted(read(written.layout.evaluation_groups(name)), "eval", "eval/episodes", job.MAX_TURNS)
        for name in NAMES
    ]
    zero = {name for name in counted[0] if not any(of.get(name) for of in counted)}
    assert zero == {
        "eval/reward/min",
        "eval/turns/guided_share",
        "eval/turns/fork_rate",
        *(f"eval/forks_of/{why}" for why in REASONS),
        *(f"eval/rows/{share}" for share in ("branch_share", "branch_token_share", "repeated_share")),
        *(f"eval/tool_calls/malformed_share_of/{kind}" for kind in KINDS),
        *(f"eval/episodes/{limit}_rate" for limit in ("episode_token_limit", "time_limit", "turn_limit")),
        "eval/episodes/fork_rate",
        "eval/episodes/outcome_AgentError_rate",
    }


def test_the_recount_finds_each_wrong_number_in_mlflow(
    written: Written, client: MlflowClient, tmp_path: Path
) -> None:
    wanted, path = written.run.job.spec.tracking.mlflow, tmp_path / "report.json"
    assert wanted is not None

    def recounted(report: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        path.write_text(json.dumps(report))
        command = [sys.executable, RECOUNT, path, wanted.uri, "ns/judged"]
        return subprocess.run(command, text=True, capture_output=True, timeout=60)

    report = written.report()
    done = recounted(report)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("numbers in MLflow are the same\n")
    report["candidates"][0]["measures"]["all"]["success"]["low"] += 0.01
    report["differences"]["reward"]["tuned"]["value"] += 0.01
    lines = recounted(report).stdout.splitlines()
    assert len(lines) == 2
    assert "eval/success_low: the report has" in lines[0]
    assert "tuned eval/difference/reward: the report has" in lines[1]


def test_a_run_says_what_the_candidate_is(written: Written, client: MlflowClient) -> None:
    params = runs(written, client)["tuned"].data.params
    assert params["candidate.kind"] == "Adapter"
    assert (params["candidate.job"], params["candidate.step"]) == ("train", "12")
    assert params["job.evaluation.sampling.temperature"] == "0.8"
    assert params["job.data.uri"] == "s3://b/test.jsonl"
    everything = json.dumps([run.data.params for run in runs(written, client).values()])
    assert "secret" not in everything


def test_a_run_holds_the_table_and_the_report(written: Written, client: MlflowClient, tmp_path: Path) -> None:
    run = runs(written, client)["base"].info.run_id
    fetched = Path(client.download_artifacts(run, "results.parquet", str(tmp_path)))
    table = pq.read_table(fetched)
    assert table.num_rows == ROWS * job.TRIES
    assert set(table["candidate"].to_pylist()) == {"base"}
    shown = client.load_table(written.parent.experiment_id, "results.json", [run]) if written.parent else None
    assert shown is not None
    assert list(shown["episode_id"]) == table["episode_id"].to_pylist()
    text = Path(client.download_artifacts(run, "report.md", str(tmp_path))).read_text()
    assert text == FileStore().get(written.layout.report_for_people).decode()


def test_the_parent_has_the_report(written: Written, client: MlflowClient, tmp_path: Path) -> None:
    assert written.parent is not None
    path = client.download_artifacts(written.parent.run_id, "report.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == written.report()
    html = Path(client.download_artifacts(written.parent.run_id, "report.html", str(tmp_path)))
    assert html.read_bytes() == FileStore().get(written.layout.page)
    assert written.parent.url is not None
    assert written.parent.run_id in written.parent.url


def test_a_trace_for_each_episode_with_its_turns_and_tokens(written: Written, client: MlflowClient) -> None:
    assert written.parent is not None
    run = runs(written, client)["tuned"].info.run_id
    listed = client.search_traces(locations=[written.parent.experiment_id], run_id=run, max_results=500)
    tries = {each.episode_id: each for each in written.run.state.candidates["tuned"].all_tries}
    assert {trace.info.client_request_id for trace in listed} == tries.keys()
    groups = {e.episode_id: e for g in job.groups("tuned")[:ROWS] for e in g.episodes}
    for trace in listed:
        one = tries[str(trace.info.client_request_id)]
        episode = groups[one.episode_id]
        usage = trace.info.token_usage
        assert usage is not None
        assert usage["output_tokens"] == one.sampled_tokens
        assert usage["input_tokens"] == one.prompt_tokens + one.cached_tokens
        assert trace.info.request_time == int(episode.started_at * 1000)
        assert trace.info.tags["headway.dev/outcome"] == one.outcome.value
        spans = trace.data.spans
        turns = [span for span in spans if span.span_type == "CHAT_MODEL"]
        assert len(turns) == one.turns
        assert sorted(span.name for span in spans if span.span_type == "TOOL") == sorted(
            name for name, calls in one.tool_calls.by_tool.items() for _ in range(calls)
        )
        root = next(span for span in spans if span.parent_id is None)
        assert root.inputs["messages"][-1]["content"] == "What is it made of?"
        assert root.outputs["external_score"] == one.external_score
        assert {span.parent_id for span in turns} == {root.span_id}


def test_an_unavailable_mlflow_server_changes_no_results(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = of(tmp_path, f"http://127.0.0.1:{free_port()}")
    with caplog.at_level(logging.WARNING):
        assert found.write() is None
    assert found.report()["job"]["name"] == "judged"
    assert "mlflow-failed" in caplog.text


@pytest.mark.parametrize("error", [ValueError("no such message"), OSError(errno.ENOSPC, "no space left")])
def test_an_unwritable_log_leaves_the_other_results_intact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    written_by_inspect = inspect_log.write

    def write(path: Path, run: Any, standing: Any, *rest: Any) -> None:
        if standing.name == "base":
            raise error
        written_by_inspect(path, run, standing, *rest)

    monkeypatch.setattr(inspect_log, "write", write)
    found = of(tmp_path, None)
    found.write()
    assert found.report()["job"]["name"] == "judged"
    assert len(FileStore().list(found.layout.logs)) == len(NAMES) - 1
    assert "inspect-log-failed" in caplog.text


class Killed(BaseException):
    """The process is killed at this point."""


def test_a_crash_before_the_id_is_kept_makes_no_second_run(
    written: Written, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = written.run.job.spec.tracking.mlflow
    assert wanted is not None
    found = of(tmp_path, wanted.uri)
    crashed = found.run.job.model_copy(update={"name": "crashed", "uid": "crashed"})
    found.run = results.Run(crashed, found.run.state, found.run.days, job.BOOK)
    put, lost = FileStore.put, {found.layout.mlflow_run, found.layout.mlflow_run_of("tuned")}

    def killed(store: FileStore, uri: str, data: bytes) -> None:
        if uri in lost:
            lost.remove(uri)
            raise Killed
        put(store, uri, data)

    monkeypatch.setattr(FileStore, "put", killed)
    for _ in range(2):
        with pytest.raises(Killed):
            found.write()
    parent = found.write()
    assert parent is not None
    runs = client.search_runs([parent.experiment_id])
    by_candidate = Counter(run.data.tags.get("headway.dev/candidate") for run in runs)
    assert by_candidate == dict.fromkeys((None, *NAMES), 1)
    assert {run.data.tags.get("mlflow.parentRunId") for run in runs} == {None, parent.run_id}
    report, shown = found.report(), recount_mlflow().runs(wanted.uri, "ns/crashed", "crashed")
    checked, wrong = recount_mlflow().compare(report, shown)
    assert (checked > 0, wrong) == (True, [])


def test_traces_are_bounded(
    written: Written, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "MAX_TRACES", 3 * len(NAMES))
    wanted = written.run.job.spec.tracking.mlflow
    assert wanted is not None
    found = of(tmp_path, wanted.uri)
    found.run = results.Run(
        found.run.job.model_copy(update={"uid": "another"}), found.run.state, found.run.days, job.BOOK
    )
    parent = found.write()
    assert parent is not None
    run = MlflowRun.model_validate_json(FileStore().get(found.layout.mlflow_run_of("base")))
    assert len(client.search_traces(locations=[parent.experiment_id], run_id=run.run_id)) == 3
