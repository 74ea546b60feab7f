"""Messages of `headway` if a cluster has no Headway, or another version of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stub_cluster import StubCluster, served
from typer.testing import CliRunner, Result

from headway_cli import newer_fields
from headway_cli.app import app

ROOT = Path(__file__).resolve().parents[3]
NAME = "refund-desk"
OF = f"failed to create typed patch object (team/{NAME}; headway.dev/v1alpha1, Kind=RLTrainingJob): "
"""The beginning of an API server's refusal of an apply."""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump({"kind": "RLTrainingJob", "metadata": {"name": NAME}, "spec": {}})
    )
    made = StubCluster()
    with served(made, tmp_path) as config:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
        yield made


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def status(code: int, message: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """The Status object of an API server's refusal."""
    kept = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return code, {**kept, "message": message, "code": code, **more}


@pytest.mark.parametrize(
    "message",
    [
        f"{OF}.spec.data.train.taskColumn: field not declared in schema",
        f"{OF}errors:\n  .spec.algoritm: field not declared in schema\n"
        "  .spec.budget: field not declared in schema",
        'strict decoding error: unknown field "spec.algorithm.entropy"',
    ],
)
def test_a_field_an_older_cluster_lacks_shows_how_to_upgrade_it(stub: StubCluster, message: str) -> None:
    stub.refusal = status(500, message)
    done = run("submit", "job.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"headway: {message}; this command knows the field")
    assert "the cluster may have an older Headway: `helm list -n headway-system` shows its" in done.stderr
    assert "`helm upgrade headway charts/headway -n headway-system` upgrades it" in done.stderr


@pytest.mark.parametrize(
    "message",
    [
        f"{OF}.spec.algoritm.groupSize: field not declared in schema",
        f"{OF}.spec.algorithm.groupSize.deeper: field not declared in schema",
        'strict decoding error: unknown field "spec.algorithm.batchsize"',
        'RLTrainingJob.headway.dev "a" is invalid: spec.algorithm.groupSize: Invalid value: 0',
    ],
)
def test_a_field_of_no_version_is_refused_in_the_servers_words(stub: StubCluster, message: str) -> None:
    stub.refusal = status(422, message, reason="Invalid")
    done = run("submit", "job.yaml")
    assert (done.exit_code, done.stderr) == (2, f"headway: {message}\n")


@pytest.mark.parametrize("missing", ["context", "server"])
def test_without_a_cluster_wrong_fields_are_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """A person can correct them before there is a cluster."""
    with served(StubCluster(), tmp_path) as config:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    config.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", config.read_text()))
    right, wrong = ROOT / "examples" / "sop-quickstart" / "job.yaml", tmp_path / "wrong.yaml"
    wrong.write_text(right.read_text().replace("\nspec:", "\nspec:\n  modle: 1", 1))
    options = ("--context", "absent") if missing == "context" else ()
    done = run("submit", str(wrong), *options)
    assert (done.exit_code, done.stderr) == (
        2,
        "headway: spec.modle: there is no such field; did you mean model?\n",
    )
    done = run("submit", str(right), *options)
    says = "the kubeconfig has no such context" if missing == "context" else "does not answer"
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("name", ["", "a/b", "Desk", "t\u00e4st", "-a"])
@pytest.mark.parametrize("verb", ["watch", "suspend", "resume"])
def test_a_name_that_no_job_can_have_is_refused(stub: StubCluster, verb: str, name: str) -> None:
    done = run(verb, "--", name)
    assert (done.exit_code, stub.asked) == (2, [])
    assert done.stderr == (
        f"headway: {name!r} is no job's name: write a name of a-z, 0-9, - and ., such as my-job\n"
    )


def test_elements_of_a_list_have_the_fields_of_its_items() -> None:
    message = '.spec.candidates[name="a"].checkpoint.job: field not declared in schema'
    assert newer_fields.newer("RLEvalJob", message) == ['spec.candidates[name="a"].checkpoint.job']
    assert newer_fields.newer("RLEvalJob", message.replace("job", "jobs")) == []
    indexed = 'unknown field "spec.candidates[0].checkpoint.job"'
    assert newer_fields.newer("RLEvalJob", indexed) == ["spec.candidates[0].checkpoint.job"]


@pytest.mark.parametrize(
    "words", [("submit", "job.yaml"), ("watch", NAME), ("artifacts", NAME, "-n", "team")], ids=" ".join
)
def test_a_cluster_without_this_version_of_the_kinds_is_an_error(
    stub: StubCluster, words: tuple[str, ...]
) -> None:
    stub.refusal = 404, "404 page not found\n"
    done = run(*words)
    assert done.exit_code == 2
    assert "the cluster of context stub has no RLTrainingJob (headway.dev/v1alpha1)" in done.stderr
    assert "helm install headway charts/headway -n headway-system --create-namespace" in done.stderr
    shows = "kubectl get crd rltrainingjobs.headway.dev -o jsonpath={.spec.versions[*].name}"
    assert f"or another version of it: `{shows}` shows which" in done.stderr


def test_an_absent_job_is_not_reported_as_another_version(stub: StubCluster) -> None:
    message = f'rltrainingjobs.headway.dev "{NAME}" not found'
    stub.refusal = status(404, message, reason="NotFound")
    done = run("watch", NAME)
    assert done.exit_code == 2
    assert "another version" not in done.stderr
    assert f"namespace team has no RLTrainingJob {NAME}" in done.stderr
    assert json.dumps(message) not in done.stderr
