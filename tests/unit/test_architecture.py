"""The house's walls: who may import whom, and where the heavy libraries may be named."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "headway_api": ROOT / "api/headway_api",
    "headway_analysis": ROOT / "analysis/headway_analysis",
    "headway_cli": ROOT / "cli/headway_cli",
    "headway_coordinator": ROOT / "coordinator/headway_coordinator",
    "headway_operator": ROOT / "operator/headway_operator",
    "headway_rollout": ROOT / "rollout/headway_rollout",
    "headway_trainer": ROOT / "trainer/headway_trainer",
    "headway_sandbox": ROOT / "sandbox/headway_sandbox",
    "headway_wire": ROOT / "wire/headway_wire",
}
STANDARD_LIBRARY_ONLY = (
    "environment.py",
    "tools.py",
    "server.py",
    "session.py",
    "returns.py",
    "awaited.py",
    "judges.py",
    "__init__.py",
)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def importers(package: str, library: str) -> set[str]:
    """Files of `package`, relative to it, that import `library`."""
    root = PACKAGES[package]
    return {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(name.split(".")[0] == library for name in imports(path))
    }


ALSO_IMPORTS = {
    "headway_cli": {"headway_analysis", "headway_operator", "headway_sandbox"},
    "headway_coordinator": {"headway_analysis", "headway_wire"},
    "headway_operator": {"headway_wire"},
    "headway_rollout": {"headway_wire"},
    "headway_trainer": {"headway_wire"},
    "headway_sandbox": {"headway_wire"},
}
ONLY_IN = {"sandbox/headway_sandbox/testing": {"headway_analysis"}}
"""Folders that may import more than their package: the module for an author's own tests judges by the
preflight's checks. It runs on the author's machine, and no process of a job imports it."""


def test_nothing_of_a_job_imports_what_is_for_tests() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package, root in PACKAGES.items()
        if package != "headway_cli"  # it runs an author's own checks on the author's machine
        for path in root.rglob("*.py")
        if "testing" not in path.parts and any(".testing" in f".{name}" for name in imports(path))
    }
    assert not found


def more_in(path: Path) -> set[str]:
    """What a file may import for the folder that it is in."""
    return set().union(*(names for folder, names in ONLY_IN.items() if path.is_relative_to(ROOT / folder)))


@pytest.mark.parametrize("package", PACKAGES)
def test_processes_import_only_the_contracts_and_themselves(package: str) -> None:
    allowed = {package, "headway_api"} | ALSO_IMPORTS.get(package, set())
    found = {
        (str(path.relative_to(ROOT)), name.split(".")[0])
        for path in PACKAGES[package].rglob("*.py")
        for name in imports(path)
        if name.startswith("headway_") and name.split(".")[0] not in allowed | more_in(path)
    }
    assert not found


def test_one_module_of_the_operator_knows_kopf() -> None:
    assert importers("headway_operator", "kopf") == {"app.py"}


def test_one_module_of_the_learner_knows_deepspeed() -> None:
    assert importers("headway_trainer", "deepspeed") == {"engine.py"}


def test_what_knows_vllm_is_what_runs_inside_of_it() -> None:
    assert importers("headway_rollout", "vllm") == {"weight_transfer.py", "cpu_lora.py"}


def test_the_contracts_import_nothing_heavy() -> None:
    heavy = {"torch", "vllm", "deepspeed", "transformers", "kopf", "kubernetes", "aiohttp", "numpy", "mlflow"}
    found = {library: importers("headway_api", library) for library in heavy}
    assert not {library: files for library, files in found.items() if files}


def test_what_runs_in_a_sandbox_is_standard_library_only() -> None:
    import sys

    root = PACKAGES["headway_sandbox"]
    for file in STANDARD_LIBRARY_ONLY:
        names = {name.split(".")[0] for name in imports(root / file)}
        assert names <= set(sys.stdlib_module_names) | {"headway_sandbox"}, file


LISTENERS = {"AppRunner", "TCPSite", "HTTPServer", "ThreadingHTTPServer", "run_app"}
LISTENERS |= {"start_server", "create_server"}
LISTENS = {
    "headway_sandbox/http.py": "create_server",
    "headway_wire/listening.py": "AppRunner create_server",
    "headway_wire/threads.py": "ThreadingHTTPServer",
}
"""Who may listen; a sandbox's server has the standard library alone, and bounds of its own."""


def listeners(path: Path) -> set[str]:
    """What of `LISTENERS` a file calls, or derives from."""
    named: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text())):
        named += [node.func] if isinstance(node, ast.Call) else []
        named += node.bases if isinstance(node, ast.ClassDef) else []
    return LISTENERS & {
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in named
    }


def test_nothing_listens_but_by_the_bounded_servers() -> None:
    found = {
        str(path.relative_to(root.parent)): " ".join(sorted(listeners(path)))
        for root in PACKAGES.values()
        for path in root.rglob("*.py")
        if "templates" not in path.parts  # an agent that `headway init` writes is the user's
        if listeners(path)
    }
    assert found == LISTENS


RAISED = re.compile(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
"""An entry of a docstring's section `Raises`."""


def names_known(tree: ast.AST) -> Iterator[str]:
    """Classes that a module defines, and every name that it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def raised_in_docstrings(tree: ast.AST) -> Iterator[str]:
    """Errors that the sections `Raises` of a module's docstrings name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _, found, section = (ast.get_docstring(node) or "").partition("\nRaises:\n")
            if found:
                yield from (name for names in RAISED.findall(section) for name in names.split(", "))


def test_docstrings_name_errors_that_exist() -> None:
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for root in PACKAGES.values()
        for path in root.rglob("*.py")
    }
    known = {*dir(builtins), *(name for tree in trees.values() for name in names_known(tree))}
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees.items()
        for name in raised_in_docstrings(tree)
        if name not in known
    }
    assert unknown == set()
