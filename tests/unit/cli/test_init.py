"""`headway init`: what a new project contains, that it is valid, and where it is not written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from headway_analysis.overlaps import content
from headway_api.recipes import warnings
from headway_api.spec.training import RLTrainingJob
from headway_cli import scaffold
from headway_cli.commands import init
from headway_cli.scaffold import ProjectError, Template

app = typer.Typer()
app.command()(init.init)
EVERYWHERE = {
    ".gitignore",
    "Dockerfile",
    "README.md",
    "data/train.jsonl",
    "data/validation.jsonl",
    "environment.py",
    "generate.py",
    "job.yaml",
    "test_environment.py",
}
OF_AN_AGENT = {"agent.py", "agent.yaml", "test_agent.py"}


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[Template, Path]:
    """A project of each template."""
    made = {}
    for template in Template:
        made[template] = tmp_path_factory.mktemp("projects") / f"my-{template}"
        scaffold.write(made[template], template)
    return made


def rows(project: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project / "data" / f"{split}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("template", Template)
def test_a_project_has_all_that_it_needs(projects: dict[Template, Path], template: Template) -> None:
    project = projects[template]
    found = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert found == EVERYWHERE | (OF_AN_AGENT if template is Template.AGENT_HTTP else set())


@pytest.mark.parametrize("template", Template)
def test_a_projects_job_has_its_name_and_no_warnings(
    projects: dict[Template, Path], template: Template
) -> None:
    project = projects[template]
    job = RLTrainingJob.model_validate(yaml.safe_load((project / "job.yaml").read_text()))
    assert job.metadata.name == f"my-{template}"
    assert warnings(job.spec) == []
    assert job.spec.data.train.uri == f"file://{project}/data/train.jsonl"
    for name in ("README.md", "Dockerfile"):
        assert f"my-{template}" in (project / name).read_text()
    assert "FROM ${BASE}" in (project / "Dockerfile").read_text()


def test_an_agents_service_is_the_one_that_the_job_names(projects: dict[Template, Path]) -> None:
    project = projects[Template.AGENT_HTTP]
    job = yaml.safe_load((project / "job.yaml").read_text())
    deployment, service = yaml.safe_load_all((project / "agent.yaml").read_text())
    named = job["spec"]["agent"]["http"]["service"]
    assert named == {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("template", Template)
def test_no_row_and_no_prompt_occurs_twice(projects: dict[Template, Path], template: Template) -> None:
    train, validation = rows(projects[template], "train"), rows(projects[template], "validation")
    assert len(train) > 200
    assert len(validation) == 64
    for key in (content, lambda row: row["prompt"]):
        assert len({key(row) for row in [*train, *validation]}) == len(train) + len(validation)


@pytest.mark.parametrize("template", Template)
def test_a_seed_makes_the_same_rows_and_another_seed_others(
    projects: dict[Template, Path], template: Template, tmp_path: Path
) -> None:
    written = {}
    for seed in ("0", "1"):
        command = [sys.executable, "generate.py", "--out", str(tmp_path / seed), "--seed", seed]
        subprocess.run(command, cwd=projects[template], check=True, capture_output=True)
        written[seed] = (tmp_path / seed / "train.jsonl").read_bytes()
    assert written["0"] == (projects[template] / "data" / "train.jsonl").read_bytes() != written["1"]


def test_the_command_says_what_it_wrote_and_what_to_do_next(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(tmp_path / "Refund Desk"), "--template", "replay"])
    assert done.exit_code == 0, done.stderr
    assert "environment.py\n" in done.stdout
    assert done.stdout.endswith(f"next: headway check '{tmp_path}/Refund Desk/job.yaml'\n")
    assert yaml.safe_load((tmp_path / "Refund Desk" / "job.yaml").read_text())["metadata"] == {
        "name": "refund-desk"
    }


@pytest.mark.parametrize("name", ["null", "on", "e3"])
def test_a_name_like_a_number_stays_text_in_the_job(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(app, [str(tmp_path / "x"), "--template", "stateful", "--name", name])
    assert done.exit_code == 0, done.stderr
    assert yaml.safe_load((tmp_path / "x" / "job.yaml").read_text())["metadata"]["name"] == name


@pytest.mark.parametrize(
    ("folder", "options", "words"),
    [
        ("desk", ["--name", "My Desk"], "--name My Desk: write --name with a name of a-z, 0-9 and -"),
        ("desk", ["--name", "x" * 41], "at most 40 characters"),
        ("42", [], "the folder's name '42' cannot be a job's name: write --name"),
        ("...", [], "cannot be a job's name"),
        ("a:b", ["--name", "desk"], "write a folder whose path has no quotes, colons or backslashes"),
        ('a"b', ["--name", "desk"], "write a folder whose path has no quotes, colons or backslashes"),
    ],
)
def test_a_name_that_no_job_can_have_is_refused(
    tmp_path: Path, folder: str, options: list[str], words: str
) -> None:
    done = CliRunner().invoke(app, [str(tmp_path / folder), "--template", "replay", *options])
    assert done.exit_code == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = CliRunner().invoke(app, [str(tmp_path), "--template", "replay", "--name", "desk"])
    assert done.exit_code == 2
    assert "is not empty: write the name of a new folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_json_has_the_folder_and_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    done = CliRunner().invoke(app, [str(folder), "--template", "replay", "--output", "json"])
    found = json.loads(done.stdout)
    assert found["folder"] == str(folder)
    assert set(found["files"]) == {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_an_empty_folder_is_accepted(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(tmp_path), "--template", "verifiable", "--name", "desk"])
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "job.yaml").is_file()


@pytest.mark.parametrize(
    ("where", "words"),
    [("file", "is a file: write the name of a folder"), ("file/desk", "Not a directory: write another")],
)
def test_a_file_in_the_way_is_named(tmp_path: Path, where: str, words: str) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, [str(tmp_path / where), "--template", "replay", "--name", "desk"])
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize("options", [[], ["--template", "chess"]])
def test_an_unknown_template_is_refused(tmp_path: Path, options: list[str]) -> None:
    done = CliRunner().invoke(app, [str(tmp_path / "desk"), *options])
    assert done.exit_code == 2
    assert "--template" in done.stderr
    assert not (tmp_path / "desk").exists()


def test_a_failed_generator_is_reported_by_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaffold, "texts", lambda *_: {"generate.py": "raise ValueError('no rows')"})
    with pytest.raises(ProjectError, match=r"generate\.py failed: ValueError: no rows"):
        scaffold.write(tmp_path / "desk", Template.REPLAY)
