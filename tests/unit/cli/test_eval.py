"""`headway eval`: it makes an RLEvalJob from options, and prints, applies or runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from finished_run import NAME, FinishedRun
from stub_cluster import StubCluster, served
from typer.testing import CliRunner, Result

from headway_api.document import Json
from headway_api.spec.evaluation import RLEvalJob
from headway_cli.commands import eval as verb
from headway_cli.commands.common import Form
from headway_cli.eval_manifest import (
    EvalOptions,
    borrowed_of,
    candidate,
    candidates_of,
    gate_of,
    manifest,
    names_of,
)
from headway_cli.local.manifest import ManifestError

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "sop-quickstart" / "job.yaml"
EVAL = ROOT / "examples" / "sop-quickstart" / "eval.yaml"
app = typer.Typer()
app.command()(verb.eval_)


def shown(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def printed(*words: str) -> Json:
    done = shown(*words, "--print")
    assert done.exit_code == 0, done.output
    found: Json = yaml.safe_load(done.stdout)
    RLEvalJob.model_validate(found)
    return found


def training(**spec: Any) -> Json:
    found: Json = yaml.safe_load(JOB.read_text())
    return {**found, "spec": {**found["spec"], **spec}}


def test_the_examples_evaluation_has_its_jobs_fields() -> None:
    """They agree with `eval.yaml`, except for the candidate at an endpoint, `noWorse`, and the rows."""
    made = printed(
        "--from", str(JOB), "--must-beat", "tuned-base", "--max-rows", "48",
        "--data", "s3://headway/quickstart/test.jsonl", "--name", "sop-quickstart",
    )  # fmt: skip
    known = yaml.safe_load(EVAL.read_text())
    spec, other = made["spec"], known["spec"]
    assert (made["kind"], made["metadata"]) == (known["kind"], known["metadata"])
    for block in ("data", "agent", "environment", "rollout", "evaluation", "output", "tracking"):
        assert spec[block] == other[block], block
    assert spec["candidates"] == other["candidates"][:1]
    assert spec["gate"] == {"candidate": "tuned", "mustBeat": "tuned-base"}


def test_by_default_the_best_weights_and_the_base_are_measured() -> None:
    made = printed("--from", str(JOB))
    assert names_of(made["spec"]["candidates"]) == ["tuned", "tuned-base"]
    assert made["metadata"]["name"] == "sop-quickstart-eval", "a folder of its own beside the training job's"
    assert made["spec"]["data"] == {"uri": "s3://headway/quickstart/validation.jsonl"}
    assert made["spec"]["evaluation"]["maxRows"] == 64


def test_the_test_split_is_taken_whole_where_there_is_one() -> None:
    data = {"validation": {"uri": "s3://b/v.jsonl"}, "test": {"uri": "s3://b/t.csv", "taskColumn": "kind"}}
    found = borrowed_of(training(data=data))
    assert found["data"] == {"uri": "s3://b/t.csv", "taskColumn": "kind"}
    assert "maxRows" not in found["evaluation"]


def test_tokens_are_drawn_as_in_validation() -> None:
    sampling = {"temperature": 0.5, "maxTokens": 7}
    found = borrowed_of(training(evaluation={"everySteps": 5, "sampling": sampling, "groupSize": 4}))
    assert found["evaluation"] == {"groupSize": 4, "sampling": sampling}
    assert borrowed_of(training(rollout={}))["evaluation"]["sampling"] == {"maxTokens": 4096}


def test_fields_of_training_alone_are_not_copied() -> None:
    job = training(
        environment={"image": "i", "entrypoint": "m:C", "contract": {"tools": []}},
        rollout={"maxConcurrency": 8, "episodeTokenLimit": 99, "sampling": {"maxTokens": 5}},
        output={
            "uri": "s3://b/o",
            "roleSecretRefs": {"learner": {"name": "l"}, "rollout": {"name": "r"}},
        },
    )
    made = manifest(EvalOptions(), job)
    RLEvalJob.model_validate(made)
    assert made["spec"]["environment"] == {"image": "i", "entrypoint": "m:C"}
    assert made["spec"]["rollout"] == {"maxConcurrency": 8}
    assert made["spec"]["output"]["roleSecretRefs"] == {"rollout": {"name": "r"}}
    assert not {"model", "algorithm", "budget", "preflight"} & made["spec"].keys()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tuned=checkpoint:desk:best", {"checkpoint": {"job": "desk", "which": "best"}}),
        ("tuned=checkpoint:desk", {"checkpoint": {"job": "desk", "which": "best"}}),
        ("tuned=checkpoint:desk:latest", {"checkpoint": {"job": "desk", "which": "latest"}}),
        ("tuned=checkpoint:desk:12", {"checkpoint": {"job": "desk", "step": 12}}),
        ("tuned=hf://org/model", {"model": {"base": "hf://org/model"}}),
        ("tuned=s3://b/m", {"model": {"base": "s3://b/m"}}),
    ],
)
def test_a_candidate_is_read(text: str, found: Json) -> None:
    assert candidate(text) == {"name": "tuned", **found}


@pytest.mark.parametrize("text", ["tuned", "=hf://a/b", "tuned=", "tuned=desk", "t=checkpoint:desk:newest"])
def test_an_invalid_candidate_says_what_to_write(text: str) -> None:
    with pytest.raises(ManifestError, match=r"--candidate .*: (write NAME=checkpoint|after the job write)"):
        candidate(text)


def test_a_model_is_named_by_the_end_of_its_address() -> None:
    found = candidates_of(EvalOptions(models=["hf://Qwen/Qwen3-0.6B", "s3://b/my_model/"]), None)
    assert [each["name"] for each in found] == ["qwen3-0-6b", "my-model"]


def test_the_jobs_own_base_is_loaded_as_the_job_loads_it() -> None:
    """Otherwise it would have another context length on the same servers, which the operator refuses."""
    job = training()
    [base] = candidates_of(EvalOptions(candidates=["base=s3://headway/quickstart/model"]), job)
    assert base["model"] == {
        "base": "s3://headway/quickstart/model",
        "dtype": "float32",
        "contextLength": 512,
    }
    [other] = candidates_of(EvalOptions(candidates=["base=hf://org/model"]), job)
    assert other["model"] == {"base": "hf://org/model"}


def test_two_candidates_of_one_name_are_refused() -> None:
    with pytest.raises(ManifestError, match="two candidates are called b"):
        candidates_of(EvalOptions(models=["hf://a/b"], candidates=["b=hf://c/d"]), None)
    with pytest.raises(ManifestError, match="two candidates are called tuned-base"):
        candidates_of(EvalOptions(job="desk", candidates=["tuned-base=hf://c/d"]), None)


def test_a_gate_judges_the_first_candidate_except_the_baseline() -> None:
    both = candidates_of(EvalOptions(candidates=["base=hf://a/b", "tuned=checkpoint:j"]), None)
    assert gate_of(EvalOptions(must_beat="base", margin="0.05"), both) == {
        "candidate": "tuned",
        "mustBeat": "base",
        "margin": "0.05",
    }
    assert gate_of(EvalOptions(), both) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--margin", "0.1"], "--margin says by how much a candidate must be better: write --must-beat NAME"),
        (["--must-beat", "nobody"], "--must-beat nobody: name one of several candidates; there are tuned"),
        (["--baseline", "nobody"], "spec.baseline must be the name of a candidate"),
        (["--candidate", "Tuned!=hf://a/b"], "spec.candidates.0.name"),
        (["--model", "gpt"], "--model gpt: write NAME=checkpoint:JOB"),
        (["--data", "s3://b/rows"], "needs format"),
        (["--name", "A B"], "headway: --name A B: write a name of a-z, 0-9 and -, such as my-eval"),
        (["--must-beat", "tuned-base", "--margin", "2x"], "spec.gate.margin"),
    ],
)
def test_a_wrong_option_is_named(words: list[str], message: str) -> None:
    done = shown("--from", str(JOB), "--print", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_without_a_job_each_missing_field_is_named() -> None:
    done = shown("--model", "hf://a/b", "--data", "s3://b/t.jsonl", "--print")
    assert done.exit_code == 2
    assert "spec.environment.image" in done.stderr
    assert "spec.output" in done.stderr
    assert "--from FILE takes missing fields" in done.stderr
    assert "write --data URI" in shown("--model", "hf://a/b", "--print").stderr
    assert "write what to measure: --job NAME, --model URI" in shown("--print").stderr


def test_an_own_agent_has_no_turns_to_limit(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(training(agent={"http": {"url": "http://a"}})))
    done = shown("--from", str(file), "--agent-turns", "3", "--print")
    assert done.exit_code == 2
    assert "--agent-turns: spec.agent.http has a loop of its own" in done.stderr
    assert printed("--from", str(JOB), "--agent-turns", "3")["spec"]["agent"] == {"builtin": {"maxTurns": 3}}


def test_options_override_the_jobs_fields() -> None:
    made = printed(
        "--from", str(JOB), "--environment", "other:Desk", "--image", "i:2", "--max-rows", "3",
        "--baseline", "tuned-base", "--name", "mine",
    )  # fmt: skip
    assert made["spec"]["environment"] == {"image": "i:2", "entrypoint": "other:Desk"}
    assert made["spec"]["evaluation"]["maxRows"] == 3
    assert (made["spec"]["baseline"], made["metadata"]["name"]) == ("tuned-base", "mine")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    done = shown("--from", str(EVAL), "--print")
    assert done.exit_code == 2
    assert "write the file of an RLTrainingJob, not of an RLEvalJob" in done.stderr
    assert (
        "absent does not exist: name the file" in shown("--from", str(tmp_path / "absent"), "--print").stderr
    )


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCluster]:
    monkeypatch.chdir(tmp_path)
    made = StubCluster()
    job = training()
    made.jobs["rltrainingjobs", "sop-quickstart"] = {**job, "status": {}}
    with served(made, tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        yield made


def test_an_evaluation_built_from_a_cluster_job_is_applied(stub: StubCluster) -> None:
    done = shown("--job", "sop-quickstart", "--must-beat", "tuned-base")
    assert (done.exit_code, done.stdout) == (0, "RLEvalJob headway-demo/sop-quickstart-eval\n"), done.output
    [applied] = stub.applied
    assert applied == manifest(EvalOptions(job="sop-quickstart", must_beat="tuned-base"), training())


def test_printing_applies_nothing(stub: StubCluster) -> None:
    assert (
        printed("--job", "sop-quickstart")["spec"]["candidates"][0]["checkpoint"]["job"] == "sop-quickstart"
    )
    assert stub.applied == []


def test_a_job_that_the_cluster_does_not_have_is_an_error(stub: StubCluster) -> None:
    done = shown("--job", "sop-quikstart")
    assert done.exit_code == 2
    assert "did you mean sop-quickstart?" in done.stderr


def test_an_evaluation_of_a_local_job_is_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FinishedRun(tmp_path / ".headway" / NAME).job()
    ran: list[Json] = []

    def run(file: Path, **options: Any) -> None:
        ran.append({"job": yaml.safe_load(file.read_text()), **options})
        raise typer.Exit(3)

    monkeypatch.setattr(verb.run, "run", run)
    more = ("--fresh", "--plain", "--prices", "p.json", "--secret", "a=b")
    done = shown("--job", NAME, "--local", "--modules", "here", *more)
    assert done.exit_code == 3, "as the run ended"
    [arguments] = ran
    assert (arguments["local"], arguments["environment"]) == (True, Path("here"))
    assert (arguments["fresh"], arguments["plain"]) == (True, True)
    assert (arguments["prices"], arguments["secret"]) == (Path("p.json"), ["a=b"])
    assert arguments["job"]["metadata"] == {"name": f"{NAME}-eval", "namespace": "team"}
    assert arguments["job"]["spec"]["data"] == {"uri": "s3://b/v.jsonl"}


@pytest.mark.parametrize("words", [("--fresh",), ("--prices", "p.json"), ("--secret", "a=b"), ("--plain",)])
def test_options_of_a_local_evaluation_need_local(words: tuple[str, ...]) -> None:
    done = shown("--from", str(JOB), *words)
    assert done.exit_code == 2
    assert f"headway: {words[0]} is for an evaluation on this machine: write --local too" in done.stderr


def test_the_modules_of_a_local_run_are_beside_the_jobs_file(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Json] = []
    monkeypatch.setattr(verb.run, "run", lambda file, **options: ran.append(options))
    assert shown("--from", str(JOB), "--local").exit_code == 0
    assert ran[0]["environment"] == JOB.parent


def test_a_local_job_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = shown("--job", "nobody", "--local")
    assert done.exit_code == 2
    assert "--job nobody: no job of that name ran here (.headway/nobody); write --from FILE" in done.stderr
    FinishedRun(tmp_path / ".headway" / "somebody").job()
    done = shown("--job", "nobody", "--local")
    assert "(.headway/nobody); did you mean somebody?" in done.stderr


def test_json_has_the_job_the_manifest_or_the_changes_of_the_run(
    stub: StubCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--from", str(JOB), "--output", "json")
    assert json.loads(shown(*asked, "--print").stdout) == printed("--from", str(JOB))
    assert stub.applied == []
    done = shown(*asked)
    assert json.loads(done.stdout) == {
        "kind": "RLEvalJob", "namespace": "headway-demo", "name": "sop-quickstart-eval"
    }  # fmt: skip
    assert [each["kind"] for each in stub.applied] == ["RLEvalJob"]
    ran: list[Json] = []
    monkeypatch.setattr(verb.run, "run", lambda file, **options: ran.append(options))
    assert shown(*asked, "--local").exit_code == 0
    assert ran[0]["output"] is Form.JSON
