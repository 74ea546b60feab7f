"""`headway doctor`: the endpoint that its options name, and its end after the preflight."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headway_api import baseline_endpoint, names
from headway_api.document import Json
from headway_cli import baseline
from headway_cli.app import app
from headway_cli.baseline import Options
from headway_cli.commands import doctor
from headway_cli.commands.common import Form, ProgressPrinter
from headway_cli.local.manifest import ManifestError

URL, MODEL = "https://models.example/v1", "frontier-1"
JOB = {"apiVersion": "rl.headway.dev/v1alpha1", "kind": "RLTrainingJob", "metadata": {"name": "desk"}}


def options(**given: Any) -> Options:
    nothing = dict.fromkeys(Options.__dataclass_fields__)
    return Options(**(nothing | given))


def failed(reason: str, message: str) -> Json:
    """The status of a job that failed before its preflight ended."""
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
    return {"preflight": {"state": "Running"}, "conditions": [condition]}


def suspended() -> Json:
    return {"type": "Suspended", "status": "True", "reason": "Suspended", "message": "by a person"}


def test_no_option_means_the_jobs_own_model() -> None:
    assert baseline.chosen(options(), {}) is None


def test_an_endpoint_has_its_limits_and_its_token() -> None:
    asked = options(endpoint=URL, model=MODEL, token_env="KEY", max_concurrency=4, requests_per_minute=30)
    found = baseline.chosen(asked, {"KEY": " sk-1\n"})
    assert found is not None
    assert found.token == "sk-1"
    assert found.spec.as_object() == {
        "url": URL,
        "model": MODEL,
        "maxConcurrency": 4,
        "requestsPerMinute": 30,
    }


@pytest.mark.parametrize(
    ("given", "fragments"),
    [
        ({"model": MODEL}, ["--model needs an endpoint", "--endpoint URL"]),
        ({"token_env": "KEY"}, ["--token-env needs an endpoint"]),
        ({"requests_per_minute": 3}, ["--requests-per-minute needs an endpoint"]),
        ({"endpoint": URL}, ["add --model NAME"]),
        ({"endpoint": "ftp://models", "model": MODEL}, ["--endpoint ftp://models", "http"]),
        ({"endpoint": URL, "model": "m" * 300}, ["--model", "256"]),
        ({"endpoint": URL, "model": MODEL, "max_concurrency": 5000}, ["--max-concurrency", "1024"]),
        ({"endpoint": URL, "model": MODEL, "token_env": "ABSENT"}, ["--token-env ABSENT", "is not set"]),
        ({"endpoint": URL, "model": MODEL, "token_env": "LINES"}, ["--token-env LINES", "header"]),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], fragments: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        baseline.chosen(options(**given), {"LINES": "two\nlines"})
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(JOB))
    done = CliRunner().invoke(app, ["doctor", str(job), "--endpoint", URL])
    assert done.exit_code == 2
    assert "add --model NAME" in done.output


def test_the_token_is_removed_from_disk_after_the_block(tmp_path: Path) -> None:
    asked = baseline.chosen(options(endpoint=URL, model=MODEL, token_env="KEY"), {"KEY": "sk-1"})
    seen: list[object] = []
    with contextlib.suppress(InterruptedError), baseline.written(asked, tmp_path) as variables:
        folder = Path(variables[names.ENV_BASELINE_ENDPOINT])
        seen = [folder.stat().st_mode & 0o077, baseline_endpoint.from_environ(variables)]
        raise InterruptedError
    assert seen == [0, asked]
    assert "sk-1" not in repr(asked)
    assert list(tmp_path.iterdir()) == []


def test_processes_of_the_job_do_not_inherit_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(JOB | {"kind": "RLEvalJob", "spec": {}}))
    monkeypatch.setenv("KEY", "sk-1")
    given = ["--endpoint", URL, "--model", MODEL, "--token-env", "KEY"]
    done = CliRunner().invoke(app, ["doctor", str(job), *given])
    assert "has no baseline episodes" in done.output
    assert "KEY" not in os.environ


def test_without_an_endpoint_the_coordinator_gets_no_variable(tmp_path: Path) -> None:
    with baseline.written(None, tmp_path) as variables:
        assert variables == {}
    assert baseline_endpoint.from_environ({}) is None


@pytest.mark.parametrize(
    ("spec", "episodes", "wanted"),
    [
        ({"preflight": {"episodes": 0}}, None, {"episodes": 100}),
        ({"preflight": {"episodes": 0}}, 24, {"episodes": 24}),
        ({"preflight": {"episodes": 40, "policy": "Off"}}, None, {"episodes": 40}),
        ({}, None, {}),
    ],
)
def test_a_job_that_samples_no_baseline_gets_one(spec: Json, episodes: int | None, wanted: Json) -> None:
    found = doctor._sampling({"spec": spec}, episodes)["spec"]["preflight"]
    assert found == {"policy": "Enforce", **wanted}


def test_a_preflight_that_is_not_a_block_is_named(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(JOB | {"spec": {"preflight": True}}))
    done = CliRunner().invoke(app, ["doctor", str(job)])
    assert done.exit_code == 2
    assert "preflight" in done.output


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ({"preflight": {"state": "Passed"}}, 0, ""),
        ({"preflight": {"state": "Warned", "findings": [{"verdict": "Warn"}]}}, 0, ""),
        ({"preflight": {"state": "Warned", "findings": [{"verdict": "Fail"}]}}, 1, ""),
        (failed("EndpointDenied", "set --token-env"), 1, "set --token-env"),
        ({"conditions": [suspended()]}, 3, "Suspended: by a person"),
    ],
)
def test_the_exit_code_says_how_it_ended(
    status: Json, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in Form:
        found = 0
        doctor._write_result({"status": status}, output)
        try:
            doctor._leave({"status": status})
        except typer.Exit as ended:
            found = ended.exit_code
        written = capsys.readouterr()
        assert found == code
        assert message in written.out + written.err


@pytest.mark.parametrize("last", ["Passed", "Warned", "Skipped"])
def test_the_command_ends_with_the_preflight(last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def followed(running: Any, look: Any) -> Json:
        for state in ("Running", "Sampling", last, "a step of training"):
            shown.append(state)
            look({"status": {"preflight": {"state": state}}})
        raise AssertionError("it trains")

    monkeypatch.setattr(doctor.local_run, "followed", followed)
    found = doctor._until_over(None, ProgressPrinter(lambda line: None, preflight=False))  # type: ignore[arg-type]
    assert found["status"]["preflight"]["state"] == last
    assert shown[-1] == last
