"""The run that a reading command names: on this machine, on a cluster, or in a store that may be down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import written_run
from finished_run import FinishedRun
from ports import free_port
from refusing_bucket import refusing_store
from stub_cluster import NAMESPACE, StubCluster, served
from typer.testing import CliRunner, Result
from written_run import Made

from headway_api.artifacts import RunLayout
from headway_cli.app import app
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun

NAME = "refunds"
READING = {
    "trajectories": ("--output", "json"),
    "report": ("--out", "page.html", "--output", "json"),
    "timeline": ("--output", "json"),
    "artifacts": ("--output", "json"),
}
"""Command -> its options, for the commands that read any run."""
LONGEST_SECONDS = 20.0


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written_run.write(tmp_path_factory.mktemp("store"), steps=2, name=NAME)


def job(uri: str | None, kind: str = "RLTrainingJob", name: str = NAME, **output: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": "u"},
        "spec": {"output": output},
        "status": {} if uri is None else {"artifacts": {"uri": uri}},
    }


@pytest.fixture
def stub(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    """A cluster that has the job, and an empty current folder."""
    monkeypatch.chdir(tmp_path)
    found = StubCluster(jobs={("rltrainingjobs", NAME): job(made.layout.root)})
    with served(found, tmp_path) as config:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
        yield found


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("chosen", [(), ("-n", "team"), ("--namespace", "team"), ("--context", "stub")])
def test_a_job_on_a_cluster_is_read_by_its_name(
    stub: StubCluster, made: Made, verb: str, chosen: tuple[str, ...]
) -> None:
    by_name = run(verb, NAME, *chosen, *READING[verb])
    by_address = run(verb, made.layout.root, *READING[verb])
    assert by_name.exit_code == by_address.exit_code == 0, by_name.output
    assert by_name.stdout == by_address.stdout != ""


def test_runs_of_a_cluster_are_compared_by_their_names(stub: StubCluster, tmp_path: Path) -> None:
    other = written_run.write(tmp_path / "store", steps=2, name="slower", seed=3)
    stub.jobs["rltrainingjobs", "slower"] = job(other.layout.root, name="slower")
    done = run("compare", NAME, "slower", "-n", "team", "--out", "page.html")
    assert done.exit_code == 0, done.output
    assert "spec.seed" in (tmp_path / "page.html").read_text()


def test_a_name_means_a_local_job_unless_a_cluster_is_chosen(
    stub: StubCluster, made: Made, tmp_path: Path
) -> None:
    here = FinishedRun(tmp_path / ".headway" / NAME).job().identity()

    def root(*words: str) -> Any:
        return json.loads(run("artifacts", NAME, "--output", "json", *words).stdout)["uri"]

    assert root() == here.uri
    assert root("-n", "team") == made.layout.root


def test_either_kind_is_found_and_a_training_job_comes_first(stub: StubCluster, tmp_path: Path) -> None:
    judged = FinishedRun(tmp_path / "store").identity()
    stub.jobs["rlevaljobs", "judged"] = job(judged.uri, "RLEvalJob", "judged")
    stub.jobs["rlevaljobs", NAME] = job(judged.uri, "RLEvalJob")

    def uri(*words: str) -> Any:
        return json.loads(run("artifacts", *words, "--output", "json").stdout)["uri"]

    assert uri("judged") == judged.uri
    assert uri(NAME) != judged.uri
    assert uri(NAME, "--kind", "eval") == judged.uri
    done = run("artifacts", "judged", "--kind", "training")
    assert done.exit_code == 2
    assert "namespace team has no RLTrainingJob judged" in done.stderr


@pytest.mark.parametrize("verb", [*READING, "cost", "logs", "serve", "replay"])
def test_an_unknown_name_suggests_near_names_from_both_places(
    stub: StubCluster, tmp_path: Path, verb: str
) -> None:
    FinishedRun(tmp_path / ".headway" / "refined").job()
    more = {"serve": ("--print",), "replay": ("--step", "1")}.get(verb, ())
    done = run(verb, "refund", *more)
    assert done.exit_code == 2, done.output
    assert done.stderr == (
        "headway: .headway has no job refund; did you mean refined?; "
        "namespace team has no RLTrainingJob refund; did you mean refunds?\n"
    )
    done = run(verb, "refund", "-n", "team", *more)
    assert done.stderr == "headway: namespace team has no RLTrainingJob refund; did you mean refunds?\n"


def test_a_folder_that_does_not_exist_has_near_names(stub: StubCluster, tmp_path: Path) -> None:
    FinishedRun(tmp_path / ".headway" / "refined").job()
    done = run("artifacts", ".headway/Refine")
    assert (done.exit_code, done.stderr) == (
        2,
        "headway: .headway/Refine does not exist: did you mean refined?\n",
    )
    assert "name the folder of a local job" in run("artifacts", "elsewhere/Refine").stderr


def test_a_job_that_has_written_nothing_says_so(stub: StubCluster) -> None:
    stub.jobs["rltrainingjobs", NAME] = job(None)
    for verb in READING:
        done = run(verb, NAME, *READING[verb])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == f"headway: {NAME}: the job has written nothing yet\n"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-test-1")


@pytest.mark.usefixtures("keys")
def test_a_jobs_store_is_the_one_it_names_or_the_one_given(stub: StubCluster) -> None:
    own, given = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    stub.jobs["rltrainingjobs", NAME] = job("s3://bucket/run", endpointUrl=own)
    error = run("artifacts", NAME).stderr
    assert own in error
    assert "if this machine reaches the store at another address, write --endpoint-url" in error
    error = run("artifacts", NAME, "--endpoint-url", given).stderr
    assert given in error
    assert own not in error


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    "words",
    [
        ("report", "s3://bucket/run"),
        ("compare", "s3://bucket/run", "s3://bucket/other"),
        ("trajectories", "s3://bucket/run"),
        ("timeline", "s3://bucket/run"),
        ("artifacts", "s3://bucket/run"),
        ("artifacts", "s3://bucket/run", "--get", "x", "--to", "copies"),
        ("cost", "s3://bucket/run"),
        ("logs", "s3://bucket/run"),
        ("serve", "s3://bucket/run", "--print"),
        ("replay", "s3://bucket/run", "--step", "1"),
    ],
    ids=" ".join,
)
def test_an_unavailable_store_is_named_within_seconds(words: tuple[str, ...], tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    done = run(*words, "--endpoint-url", url)
    assert time.monotonic() - begun < LONGEST_SECONDS
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert isinstance(done.exception, SystemExit), "it is not a Python traceback"
    assert done.stderr.startswith("headway: "), done.stderr
    assert url in done.stderr
    assert "s3://bucket/" in done.stderr
    assert "Traceback" not in done.stderr
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("verb", ["report", "cost", "logs"])
def test_without_credentials_a_shells_variables_are_named(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    done = run(verb, "s3://bucket/run", "--endpoint-url", f"http://127.0.0.1:{free_port()}")
    assert (done.exit_code, done.stderr) == (
        2,
        "headway: s3://bucket/run: bucket 'bucket' cannot be used: no credentials; set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY in this shell, or AWS_PROFILE to a profile or role that may read it\n",
    )


def test_a_read_that_is_refused_names_a_shells_variables() -> None:
    run_ = StoredRun(refusing_store("AccessDenied", 403), RunLayout.of("s3://bucket/run"))
    with pytest.raises(RunNotFoundError, match=r"AccessDenied\); correct AWS_ACCESS_KEY_ID .* in this shell"):
        run_.latest()
