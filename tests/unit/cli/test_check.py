"""`headway check`: its findings on each unchanged template, and on each fault that is put into one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from headway_analysis.preflight.definition import Example, Finding
from headway_cli import scaffold
from headway_cli.checking import episodes, job, own_tests, process, rows, text
from headway_cli.commands import check
from headway_cli.local import manifest
from headway_cli.scaffold import Template
from headway_sandbox import process as sandbox_process

ROOT = Path(__file__).resolve().parents[3]
app = typer.Typer()
app.command()(check.check)
CHECKED = {
    "job", "guard-rails", "tests", "rows", "overlap", "oracle", "speed", "environment", "deterministic",
    "reward-range", "constant-guess", "scorer-mutants", "splits",
}  # fmt: skip
"""Checks that pass for every template."""
OPEN = {"model", "isolated", "prompt-labels"}
"""Checks whose finding may be Unknown: there is no model and no pod, and not every template has a label."""


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[Template, Path]:
    """A project of each template. Tests must not change it."""
    made = {}
    for template in Template:
        made[template] = tmp_path_factory.mktemp("projects") / f"my-{template}"
        scaffold.write(made[template], template)
    return made


@pytest.fixture
def project(projects: dict[Template, Path], tmp_path: Path) -> Path:
    """The replay project, which a test may change. Its own tests are left out, because they take seconds."""
    return copied(projects, tmp_path / "desk")


def copied(projects: dict[Template, Path], folder: Path) -> Path:
    shutil.copytree(projects[Template.REPLAY], folder)
    (folder / "test_environment.py").unlink()
    edit(folder / "job.yaml", str(projects[Template.REPLAY]), str(folder))
    return folder


def document(project: Path, *settings: str) -> dict[str, Any]:
    return manifest.changed(manifest.read(project / "job.yaml"), settings)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def findings(project: Path, *settings: str, max_rows: int = 2, seconds: float = 100) -> Iterator[Finding]:
    """Findings of the episodes, one after the other. The episodes end if the caller stops reading."""
    job_of = document(project, *settings)
    _, spec = job.read(job_of)
    assert spec is not None
    _, data = rows.read(spec)
    yield from episodes.findings(episodes.PlayRequest(job_of, str(project), max_rows), spec, data, seconds)


def played(project: Path, *settings: str, **more: Any) -> dict[str, Finding]:
    """Check -> the first of its findings, after all episodes."""
    found: dict[str, Finding] = {}
    for finding in findings(project, *settings, **more):
        found.setdefault(finding.check, finding)
    return found


def first(project: Path, *settings: str, **more: Any) -> Finding:
    """The first finding."""
    with closing(findings(project, *settings, **more)) as coming:
        return next(coming)


def named(found: Sequence[Finding], check_id: str) -> list[Finding]:
    return [finding for finding in found if finding.check == check_id]


# each template as written


LATER = (Template.STATEFUL, Template.VERIFIABLE)
"""Templates whose own tests take seconds. `make test` leaves them to `.ci/run`."""


@pytest.mark.parametrize(
    "template",
    [pytest.param(each, marks=[pytest.mark.ci] if each in LATER else []) for each in Template],
)
def test_a_template_passes_as_written(projects: dict[Template, Path], template: Template) -> None:
    arguments = [str(projects[template] / "job.yaml"), "--rows", "8", "--output", "json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    verdicts = {each["check"]: each["verdict"] for each in report["checks"]}
    assert {name for name, verdict in verdicts.items() if verdict == "Pass"} - OPEN == CHECKED
    assert verdicts.keys() - CHECKED == OPEN
    assert report["verdicts"].keys() <= {"Pass", "Unknown"}
    assert report["job"] == f"my-{template}"
    [guess] = [each for each in report["checks"] if each["check"] == "constant-guess"]
    assert [name for name in guess["figures"] if "base" in name] == [], "no model sampled an episode"


# faults of the environment


@pytest.fixture(scope="module")
def mutant(projects: dict[Template, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    """Findings on a project whose scorer accepts substrings and whose tool reads the clock."""
    project = copied(projects, tmp_path_factory.mktemp("mutant") / "desk")
    code = project / "environment.py"
    strict = "return float(parse(transcript.answer) == self.expected and self.looked_up(transcript))"
    lenient = "return float(all(value in transcript.answer for value in self.expected.values()))"
    assert lenient in (ROOT / "docs" / "first-environment.md").read_text()
    edit(code, strict, lenient)
    edit(code, "import json\n", "import json\nimport time\n")
    exact = 'return self.replay("get_depot", {"depot": depot})'
    edit(code, exact, f'{exact} | {{"at": time.monotonic_ns()}}')
    return played(project)


def test_a_scorer_that_takes_substrings_is_named(mutant: dict[str, Finding]) -> None:
    found = mutant["scorer-mutants"]
    assert (found.verdict, found.field) == ("Fail", "spec.environment.entrypoint")
    assert "another tag is accepted than <answer>" in found.observed
    assert found.examples
    assert mutant["constant-guess"].observed.startswith(
        "Answers without work are paid: prompt repeated: success"
    )


def test_a_tool_that_asks_the_clock_is_named(mutant: dict[str, Finding]) -> None:
    found = mutant["deterministic"]
    assert found.verdict == "Fail"
    assert "`get_depot`" in found.observed


def test_unbroken_parts_pass_beside_broken_ones(mutant: dict[str, Finding]) -> None:
    passed = {name for name, finding in mutant.items() if finding.verdict == "Pass"}
    assert passed >= {"environment", "oracle", "speed", "reward-range", "splits"}


def test_an_invalid_reward_is_reported_with_its_line(project: Path) -> None:
    edit(project / "environment.py", "return Reward((share +", 'return Reward(float("nan") * (share +')
    found = played(project)
    assert found["environment"].verdict == "Fail"
    assert "reward" in found["environment"].observed
    assert "environment.py:" in found["environment"].observed
    assert found["reward-range"].verdict == "Fail"


def test_a_column_the_environment_needs_and_rows_lack_is_named(project: Path) -> None:
    path = project / "data" / "train.jsonl"
    kept = [{k: v for k, v in json.loads(line).items() if k != "recorded"} for line in path.open()]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    found = first(project)
    assert (found.check, found.verdict) == ("environment", "Fail")
    assert "recorded" in found.observed
    assert "in reset" in found.observed


def test_a_failed_environment_import_is_shown_in_its_own_words(project: Path) -> None:
    edit(project / "environment.py", "import json\n", "import json\nimport no_such_library\n")
    found = played(project)
    assert found.keys() == {"environment"}
    assert "no_such_library" in found["environment"].observed
    assert found["environment"].field == "spec.environment.entrypoint"


def test_a_class_that_is_not_there_is_named(project: Path) -> None:
    found = first(project, "spec.environment.entrypoint=environment:Desk")
    assert (found.check, found.verdict) == ("environment", "Fail")
    assert "Desk" in found.observed


# the oracle


def test_an_oracle_that_is_wrong_is_shown_with_its_answer(project: Path) -> None:
    edit(project / "environment.py", 'DAY[depot["queue"]]})\n', '"never"})\n')
    found = first(project)
    assert (found.verdict, found.observed) == ("Fail", "The oracle is right on 0 of 2 rows.")
    assert '"day": "never"' in found.examples[0].text


def test_an_oracle_that_raises_is_reported_with_its_line(project: Path) -> None:
    edit(project / "environment.py", 'seen.row["parcel"]', 'seen.row["case"]')
    found = first(project)
    assert found.verdict == "Fail"
    assert "KeyError: 'case' (environment.py:" in found.observed


def test_an_oracle_that_exceeds_the_jobs_turns_names_the_field(project: Path) -> None:
    found = first(project, "spec.agent.builtin.maxTurns=2")
    assert (found.verdict, found.field) == ("Fail", "spec.agent.builtin.maxTurns")


def test_an_oracle_that_needs_more_tokens_is_a_warning(project: Path) -> None:
    found = first(project, "spec.rollout.sampling.maxTokens=8")
    assert (found.verdict, found.field) == ("Warn", "spec.rollout.sampling.maxTokens")


def test_without_an_oracle_random_calls_are_played(project: Path) -> None:
    edit(project / "environment.py", "def oracle(", "def no_oracle(")
    found = played(project, max_rows=1)
    assert found["oracle"].verdict == "Unknown"
    assert "The module environment has no oracle" in found["oracle"].observed
    assert found["deterministic"].verdict == "Pass"
    assert not [finding for finding in found.values() if finding.verdict == "Fail"]


@pytest.mark.parametrize(
    ("code", "seconds", "verdict", "words"),
    [
        ("import time; time.sleep(60)", 4, "Fail", "had not ended after 4 s"),
        ("import os; os._exit(3)", 60, "Unknown", "process ended with 3"),
    ],
)
def test_an_oracle_that_hangs_or_ends_the_process_ends_the_check(
    project: Path, code: str, seconds: float, verdict: str, words: str
) -> None:
    edit(
        project / "environment.py",
        '    found = yield Call("get_parcel"',
        f'    {code}\n    found = yield Call("get_parcel"',
    )
    found = played(project, seconds=seconds)["environment"]
    assert found.verdict == verdict
    assert words in found.observed


def test_the_output_of_the_oracle_is_not_a_finding(project: Path) -> None:
    edit(
        project / "environment.py",
        '    found = yield Call("get_parcel"',
        "    print('{}')\n    found = yield Call(\"get_parcel\"",
    )
    assert first(project).verdict == "Pass"


# what is not played

JUDGE = "{url: 'https://judge.example/v1', model: large}"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (["spec.environment.entrypoint=headway_sandbox.reported:ReportedReward"], "spec.agent.http"),
        ([f"spec.judges=[{{name: style, endpoint: {JUDGE}}}]"], "spec.judges"),
        (["spec.data.train.uri=s3://bucket/train.jsonl"], "spec.data"),
    ],
)
def test_an_environment_that_cannot_run_here_is_unknown(
    project: Path, settings: list[str], field: str
) -> None:
    found = played(project, *settings)
    assert found.keys() == {"environment"}
    assert (found["environment"].verdict, found["environment"].field) == ("Unknown", field)


# the job


def test_a_misspelt_field_is_shown_with_the_one_that_is_meant(project: Path) -> None:
    edit(project / "job.yaml", "groupSize", "groupsize")
    done = CliRunner().invoke(app, [str(project / "job.yaml")])
    assert done.exit_code == 1
    assert "Fail    job              There is no such field.\n" in done.stdout
    assert "        fix: Did you mean groupSize? (spec.algorithm.groupsize)\n" in done.stdout
    assert "Rows and episodes were not checked" in done.stdout


@pytest.mark.parametrize(
    ("setting", "check_id", "verdict", "field"),
    [
        ("spec.rollout.sampling.maxTokens=4096", "job", "Fail", "spec.rollout.sampling.maxTokens"),
        ("spec.algorithm.groupSize=0", "job", "Fail", "spec.algorithm.groupSize"),
        (
            'spec.environment.sandbox.podTemplate={"spec": {"hostNetwork": true}}',
            "job",
            "Fail",
            "spec.environment.sandbox.podTemplate.spec.hostNetwork",
        ),
        ("spec.optimizer.learningRate=0.005", "guard-rails", "Warn", "spec.optimizer.learningRate"),
        ("spec.algorithm.batchSize=1", "guard-rails", "Warn", "spec.algorithm.batchSize"),
    ],
)
def test_findings_of_operator_and_guard_rails_are_shown(
    project: Path, setting: str, check_id: str, verdict: str, field: str
) -> None:
    found, _ = job.read(document(project, setting))
    (only,) = named(found, check_id)
    assert (only.verdict, only.field) == (verdict, field)
    assert only.advice


def test_every_mistake_of_a_job_has_a_line(project: Path) -> None:
    found, spec = job.read(document(project, "spec.seed=x", "spec.schedule.maxSteps=0", "spec.odd=1"))
    assert spec is None
    assert {finding.field for finding in found} == {"spec.seed", "spec.schedule.maxSteps", "spec.odd"}


def test_an_existing_model_is_found(project: Path) -> None:
    (project / "tiny-model").mkdir()
    (project / "tiny-model" / "config.json").write_text("{}")
    (found,) = named(job.read(document(project))[0], "model")
    assert found.verdict == "Pass"


@pytest.mark.parametrize("base", ["hf://Qwen/Qwen3-0.6B", "s3://bucket/model"])
def test_a_remote_model_is_not_checked(project: Path, base: str) -> None:
    found, _ = job.read(document(project, f"spec.model.base={base}"))
    assert named(found, "model") == []


# the rows


def read(project: Path, *settings: str) -> list[Finding]:
    _, spec = job.read(document(project, *settings))
    assert spec is not None
    return rows.read(spec)[0]


def test_a_row_in_two_splits_fails_and_both_places_are_named(project: Path) -> None:
    first = (project / "data" / "train.jsonl").read_text().splitlines()[0]
    with (project / "data" / "validation.jsonl").open("a") as file:
        file.write(first + "\n")
    (found,) = named(read(project), "overlap")
    assert (found.verdict, found.field) == ("Fail", "spec.data.validation")
    assert "row 64 and row 0" in found.observed
    assert found.advice.startswith("Remove them from one of the two")


def test_a_prompt_in_two_splits_is_a_warning(project: Path) -> None:
    row = json.loads((project / "data" / "train.jsonl").read_text().splitlines()[0])
    with (project / "data" / "validation.jsonl").open("a") as file:
        file.write(json.dumps(row | {"parcel": "other"}) + "\n")
    (found,) = named(read(project), "overlap")
    assert found.verdict == "Warn"


@pytest.mark.parametrize(
    ("setting", "field", "words"),
    [
        ("spec.data.train.promptColumn=question", "spec.data.train.promptColumn", "no 'question'"),
        ("spec.data.train.taskColumn=kind", "spec.data.train.taskColumn", "no 'kind'"),
        (
            "spec.data.train.uri=file:///absent.jsonl",
            "spec.data.train.uri",
            "No object at file:///absent.jsonl",
        ),
        ("spec.data.train.format=json", "spec.data.train.uri", "is not readable json"),
        ("spec.algorithm.batchSize=512", "spec.algorithm.batchSize", "do not fill one batch of 512"),
    ],
)
def test_rows_that_lack_something_are_reported_with_the_field(
    project: Path, setting: str, field: str, words: str
) -> None:
    settings = [setting, "spec.schedule.maxEpochs=1"] if "batchSize" in setting else [setting]
    found = [finding for finding in named(read(project, *settings), "rows") if finding.verdict == "Fail"]
    assert [finding.field for finding in found] == [field]
    assert words in found[0].observed
    assert found[0].advice


def test_an_evaluations_rows_are_read_too() -> None:
    folder = ROOT / "examples" / "sop-quickstart"
    found, spec = job.read(manifest.changed(manifest.read(folder / "eval.yaml"), []))
    assert [finding.verdict for finding in found] == ["Pass"]
    assert spec is not None
    (elsewhere,) = rows.read(spec)[0]
    assert (elsewhere.verdict, elsewhere.field) == ("Unknown", "spec.data.uri")


# the environment's own tests


@pytest.mark.parametrize(
    ("content", "verdict", "words"),
    [
        ("def test_one(): assert 1 == 1", "Pass", "1 passed"),
        ("def test_one(): assert 1 == 2", "Fail", "1 failed"),
        ("import no_such_library", "Fail", "1 error"),
        ("x = 1", "Unknown", "have no tests"),
        ("import time\ndef test_one(): time.sleep(60)", "Fail", "had not ended after 3 s"),
    ],
)
def test_the_environments_own_tests_are_run(tmp_path: Path, content: str, verdict: str, words: str) -> None:
    (tmp_path / "test_own.py").write_text(content)
    (found,) = own_tests.run(tmp_path, seconds=3 if "sleep" in content else 100)
    assert found.verdict == verdict
    assert words in found.observed
    assert {path.name for path in tmp_path.iterdir()} == {"test_own.py"}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Makes SIGINT raise KeyboardInterrupt, even if a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_a_process_starts_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen

    def interrupted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(original(*args, **options))
        os.kill(os.getpid(), signal.SIGINT)
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), process.running(["sleep", "60"]):
        pytest.fail("the block was entered")
    assert begun[0].poll() == -signal.SIGKILL
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_while_a_process_ends_leaves_none(
    monkeypatch: pytest.MonkeyPatch, interrupts: int
) -> None:
    living = sandbox_process.living

    def interrupted(pid: int) -> list[int]:
        os.kill(os.getpid(), signal.SIGINT)
        return living(pid)

    monkeypatch.setattr(sandbox_process, "living", interrupted)
    before = signal.getsignal(signal.SIGINT)
    begun: list[subprocess.Popen[bytes]] = []

    def interrupted_check() -> None:
        with process.running(["sleep", "60"]) as started:
            begun.append(started)
            if interrupts == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted_check()
    assert begun[0].poll() == -signal.SIGKILL
    assert signal.getsignal(signal.SIGINT) is before


def test_a_test_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_one(): assert 1 == 2")
    (found,) = own_tests.run(tmp_path)
    assert "FAILED test_own.py::test_one" in found.examples[0].text
    assert found.advice == f"Run `pytest test_own.py` in {tmp_path}, and correct what it names."


def test_without_pytest_or_tests_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = own_tests.run(tmp_path)
    assert found.verdict == "Unknown"
    (tmp_path / "test_own.py").touch()
    monkeypatch.setattr(own_tests.importlib.util, "find_spec", lambda name: None)
    (found,) = own_tests.run(tmp_path)
    assert (found.verdict, found.advice) == ("Unknown", "Install it: pip install pytest")


# the command


@pytest.mark.parametrize(
    ("message", "observed", "advice"),
    [
        ("spec.seed: wrong; docs/reference/crds.md says more", "Wrong.", "docs/reference/crds.md says more."),
        ("spec: it is wrong", "It is wrong.", job.FIELDS),
        ("spec.seed is 0.5: write a whole number", "spec.seed is 0.5.", "Write a whole number."),
        ("job.yaml has no rows; write some", "job.yaml has no rows.", "Write some."),
    ],
)
def test_paths_and_fields_keep_their_case(message: str, observed: str, advice: str) -> None:
    found = job.finding("job", "Fail", message)
    assert (found.observed, found.advice) == (observed, advice)
    assert found.field == ("spec.seed" if "seed" in message else "spec" if "spec" in message else None)


def test_a_file_or_folder_that_is_not_there_is_an_error(project: Path) -> None:
    for arguments, words in (
        (["absent.yaml"], "absent.yaml does not exist: name the file of a job"),
        ([str(project)], f"{project} is a folder: name the job's file in it: {project}/job.yaml"),
        ([str(project / "job.yaml"), "--environment", "/absent"], "--environment /absent: there is no such"),
        ([str(project / "job.yaml"), "--set", "seed=1"], "--set seed=1: write spec.FIELD=VALUE"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert words in done.stderr


def test_the_job_of_the_current_folder_is_checked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project / "job.yaml", "kind: RLTrainingJob", "kind: RLTrainingJob\nspecs: {}")
    monkeypatch.chdir(project)
    done = CliRunner().invoke(app, ["--output", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["verdicts"] == {"Fail": 1, "Unknown": 2}


def test_the_report_names_a_project_in_another_folder(project: Path, tmp_path: Path) -> None:
    moved = yaml.safe_load((project / "job.yaml").read_text())
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(yaml.safe_dump(moved))
    arguments = [str(tmp_path / "jobs" / "job.yaml"), "--environment", str(project), "--rows", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stdout
    assert "Pass    oracle           The oracle is right on 1 of 1 rows" in done.stdout


# the printed report

FINDING = Finding(
    "splits", "Fail", "Rows are shared.", advice="Split them once.", field="spec.data",
    examples=(Example("row 3", "first\nsecond"),), numbers=(("shared", 2.0),),
)  # fmt: skip


def test_a_finding_has_observation_advice_and_example() -> None:
    assert list(text.lines(FINDING, None)) == [
        "Fail    splits           Rows are shared.",
        "        fix: Split them once. (spec.data)",
        "        row 3:",
        "          first",
        "          second",
    ]


def test_a_narrow_terminal_wraps_the_text() -> None:
    long = Finding("speed", "Warn", "word " * 30, advice="less " * 20)
    assert max(map(len, text.lines(long, 60))) <= 60


def test_a_finding_survives_as_json() -> None:
    assert episodes.of_json(json.loads(json.dumps(episodes.to_json(FINDING)))) == FINDING
    least = Finding("job", "Pass", "It is valid.")
    assert episodes.to_json(least) == {"check": "job", "verdict": "Pass", "observed": "It is valid."}
    assert episodes.of_json(episodes.to_json(least)) == least
