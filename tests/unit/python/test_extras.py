"""Which files a process imports, and what its extra must declare."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "python"))

import extras
from extras import PROCESSES, ROOT, Process, UndeclaredExtrasError

PYPROJECT = {
    "project": {
        "dependencies": ["pydantic>=2"],
        "optional-dependencies": {"one": ["aiohttp>=3"], "two": ["kopf>=1", "aiohttp>=3"]},
    }
}


def package(folder: Path, sources: Mapping[str, str]) -> dict[str, Path]:
    known = {}
    for name, source in sources.items():
        known[name] = folder / f"{name}.py"
        known[name].write_text(source)
    return known


def test_a_process_reaches_what_its_imports_import(tmp_path: Path) -> None:
    known = package(
        tmp_path,
        {
            "a": "from a.b import c",
            "a.b": "import json",
            "a.b.c": "def late():\n    import d",
            "d": "",
            "e": "import d",
        },
    )
    assert extras.reached([known["a"]], known) == {known[name] for name in ("a", "a.b", "a.b.c", "d")}


def test_modules_that_import_each_other_are_found_once(tmp_path: Path) -> None:
    known = package(tmp_path, {"a": "import b", "b": "import a"})
    assert extras.reached([known["b"]], known) == set(known.values())


def test_code_that_runs_elsewhere_is_not_reached(tmp_path: Path) -> None:
    known = package(tmp_path, {"a": "import b", "b": "import c", "c": ""})
    assert extras.reached([known["a"]], known, [known["b"]]) == {known["a"]}


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef"))))
def test_reaching_again_from_what_was_reached_adds_nothing(
    tmp_path_factory: pytest.TempPathFactory, graph: dict[str, set[str]]
) -> None:
    folder = tmp_path_factory.mktemp("graph")
    known = package(folder, {name: "\n".join(f"import {to}" for to in graph[name]) for name in graph})
    once = extras.reached(list(known.values())[:1], known)
    assert extras.reached(once, known) == once


def test_deptry_is_shown_one_process_alone() -> None:
    process = Process(("one",), (), beside=("two",), undeclared={"torch": "vLLM's"})
    project = tomllib.loads(extras.project(process, ["headway_api"], PYPROJECT))
    assert project["project"]["dependencies"] == ["aiohttp>=3", "kopf>=1", "pydantic>=2"]
    ignored = project["tool"]["deptry"]["per_rule_ignores"]
    assert ignored == {"DEP001": ["torch"], "DEP002": ["kopf"], "DEP003": ["torch"]}


def test_an_extra_that_does_not_exist_is_named() -> None:
    with pytest.raises(UndeclaredExtrasError, match="no extra three"):
        extras.project(Process(("three",), ()), [], PYPROJECT)


def test_an_exception_for_what_is_not_declared_is_refused() -> None:
    with pytest.raises(UndeclaredExtrasError, match="kopf is excepted and not declared"):
        extras.project(Process(("one",), (), unused={"kopf": "why"}), [], PYPROJECT)


def test_a_folder_that_does_not_exist_is_named() -> None:
    with pytest.raises(UndeclaredExtrasError, match="nowhere/at_all does not exist"):
        extras.files_of(Process(("one",), ("nowhere/at_all",)), {})


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("types-boto3[s3]", "types-boto3"), ("vllm==0.32.0", "vllm"), ("a.b_c ; python_version<'3'", "a.b_c")],
)
def test_a_requirement_begins_with_its_package(requirement: str, name: str) -> None:
    assert extras.named(requirement) == name


def test_every_extra_is_compared_with_a_process() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    held = {extra for process in PROCESSES.values() for extra in process.extras}
    # vLLM's two builds contain the same module, and no environment has both.
    assert set(declared) - held == {"rollout-gpu"}


def test_every_file_is_some_process_s() -> None:
    known = extras.modules()
    reached = {file for process in PROCESSES.values() for file in extras.files_of(process, known)}
    assert {str(file.relative_to(ROOT)) for file in set(known.values()) - reached} == set()


@pytest.mark.parametrize(
    ("name", "module"), [(name, module) for name, each in PROCESSES.items() for module in each.undeclared]
)
def test_an_optional_dependency_is_still_imported(name: str, module: str) -> None:
    files = extras.files_of(PROCESSES[name], extras.modules())
    assert any(each.split(".")[0] == module for file in files for each in extras.imported(file.read_text()))
