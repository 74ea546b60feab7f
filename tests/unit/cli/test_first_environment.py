"""docs/first-environment.md: its commands and links exist, and its changes have the described effect."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway_cli import checking, commands, scaffold
from headway_cli.checking import episodes, job, rows
from headway_cli.local import manifest
from headway_cli.scaffold import Template

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "first-environment.md"
TEXT = PAGE.read_text()
VERBS = sorted(set(re.findall(r"\bheadway ([a-z]+(?:-[a-z]+)*)", TEXT)))
LINKS = sorted(set(re.findall(r"\]\(([^)]+)\)", TEXT)))
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
CHECKS = set(re.findall(r"`([a-z-]+)`", TEXT.partition("| check |")[2].partition("| verdict |")[0]))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    scaffold.write(tmp_path / "parcels", Template.REPLAY)
    return tmp_path / "parcels"


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_is_there(verb: str) -> None:
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.iter_modules(commands.__path__, "headway_cli.commands.")
    ]
    assert any(callable(getattr(module, verb.replace("-", "_"), None)) for module in modules)


@pytest.mark.parametrize("link", LINKS)
def test_each_link_leads_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    there = PAGE.parent / path if path else PAGE
    titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert not anchor or anchor in anchors


def test_the_templates_are_those_there_are() -> None:
    assert {each for each in Template if f"| `{each}` |" in TEXT} == {*Template}


def test_the_page_has_a_line_for_each_check(project: Path) -> None:
    (project / "test_environment.py").unlink()  # running them takes seconds
    checks = {finding.check for finding in checking.findings(manifest.read(project / "job.yaml"), project, 1)}
    assert CHECKS - {"tools-like-production", "file"} == checks


def test_the_oracle_is_the_templates(project: Path) -> None:
    def body(code: str) -> list[str]:
        tree = ast.parse(code)
        (found,) = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "oracle"]
        return [ast.unparse(each) for each in found.body if not isinstance(each, ast.Expr)]

    (shown,) = [block for block in BLOCKS if "def oracle" in block]
    assert body(shown) == body((project / "environment.py").read_text())


def test_the_change_runs_through_rows_oracle_and_judge(project: Path) -> None:
    (changed,) = [block.strip() for block in BLOCKS if block.startswith("ACTION")]
    path = project / "environment.py"
    path.write_text(re.sub(r"^ACTION = .*$", changed, path.read_text(), flags=re.MULTILINE))
    subprocess.run([sys.executable, "generate.py"], cwd=project, check=True, capture_output=True)
    written = [json.loads(line) for line in (project / "data" / "train.jsonl").open()]
    assert {row["expected"]["action"] for row in written} >= {"inspect", "refund"}
    document = manifest.read(project / "job.yaml")
    _, spec = job.read(document)
    assert spec is not None
    _, data = rows.read(spec)
    first = next(episodes.findings(episodes.PlayRequest(document, str(project), 16), spec, data))
    assert first.observed == "The oracle is right on 16 of 16 rows, and earns at least 1 on each."
