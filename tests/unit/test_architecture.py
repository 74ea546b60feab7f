"""The architecture rules: which package may import which, and where heavy libraries may be imported."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Container, Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
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


@cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports, at any place in the file."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
    return found


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
"""Folders that may import more than their package. The module for an author's own tests uses the preflight's
checks. It runs on the author's machine, and no process of a job imports it."""


def test_no_product_package_imports_testing_modules() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package, root in PACKAGES.items()
        if package != "headway_cli"  # it runs checks on an author's own machine
        for path in root.rglob("*.py")
        if "testing" not in path.parts and any(".testing" in f".{name}" for name in imports(path))
    }
    assert not found


def more_in(path: Path) -> set[str]:
    """What else a file may import, by its folder."""
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


def module_of(path: Path, root: Path) -> str:
    """The dotted name of a file in the package whose folder is `root`."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, module: str, known: Container[str]) -> Iterator[str]:
    """The known modules that a file imports.

    For `from PACKAGE import MODULE` that is the module, not its package.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for name in (f"{source}.{alias.name}" for alias in node.names):
                yield from [each for each in (name, source) if each in known][:1]


def import_graph(roots: Iterable[Path]) -> dict[str, set[str]]:
    """Module -> the modules that it imports, at any place in the file, and for types too."""
    files = {module_of(path, root): path for root in roots for path in root.rglob("*.py")}
    return {module: {*imported(path, module, files)} for module, path in files.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules in a circle: each imports the one before it, and the first is also the last.

    Empty if there is no circle.
    """
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(import_graph(PACKAGES.values())) == []


def package_graph(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    """Package -> the packages that it imports, within a process's package. Other modules are left out."""

    def package(module: str) -> str | None:
        parts = module.split(".")
        below = len(parts) > 2 or any(each.startswith(f"{module}.") for each in modules)
        return ".".join(parts[:2]) if len(parts) > 1 and below else None

    found: dict[str, set[str]] = {}
    for module, others in modules.items():
        if (own := package(module)) is not None:
            found.setdefault(own, set()).update(
                other for other in map(package, others) if other not in (None, own)
            )
    return found


def test_no_packages_import_each_other_in_a_circle() -> None:
    found = package_graph(import_graph(PACKAGES.values()))
    assert "headway_coordinator.gateway" in found["headway_coordinator.evaluation"]
    assert circle(found) == []


def test_a_circle_of_packages_is_found(tmp_path: Path) -> None:
    """This holds even if no module of the circle is in a circle of modules."""
    house = tmp_path / "house"
    for room in ("hall", "kitchen"):
        (house / room).mkdir(parents=True)
        (house / room / "__init__.py").write_text("")
        (house / room / "door.py").write_text("")
    (house / "__init__.py").write_text("")
    (house / "hall/lamp.py").write_text("from house.kitchen import door\n")
    modules = import_graph([house])
    assert circle(package_graph(modules)) == []
    (house / "kitchen/stove.py").write_text("from house.hall.door import knob\n")
    modules = import_graph([house])
    assert circle(modules) == []
    assert {*circle(package_graph(modules))} == {"house.hall", "house.kitchen"}


def test_a_circle_is_found_even_among_imports_for_types(tmp_path: Path) -> None:
    house = tmp_path / "house"
    (house / "rooms").mkdir(parents=True)
    (house / "__init__.py").write_text("")
    (house / "rooms/__init__.py").write_text("from house.rooms.hall import Hall as Hall\n")
    (house / "door.py").write_text("class Door: ...\n")
    (house / "rooms/hall.py").write_text("from house import door\nfrom house.rooms import kitchen\n")
    (house / "rooms/kitchen.py").write_text("import house.door\n")
    assert circle(import_graph([house])) == []
    for back in ("from house.rooms.hall import Hall", "from .hall import Hall", "from ..rooms import hall"):
        (house / "rooms/kitchen.py").write_text(
            f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {back}\n"
        )
        assert {*circle(import_graph([house]))} == {"house.rooms.hall", "house.rooms.kitchen"}, back


def test_one_module_of_the_operator_imports_kopf() -> None:
    assert importers("headway_operator", "kopf") == {"app.py"}


def test_only_the_modules_of_decision_0045_import_kubernetes() -> None:
    found = {name: importers(name, "kubernetes") for name in PACKAGES}
    assert {name: files for name, files in found.items() if files} == {
        "headway_operator": {"kube.py", "lease.py"},
        "headway_coordinator": {"stored_job.py"},
        "headway_cli": {"cluster.py", "pod_logs.py"},
    }


def test_one_module_of_the_learner_imports_deepspeed() -> None:
    assert importers("headway_trainer", "deepspeed") == {"engine.py"}


def test_only_modules_inside_vllm_import_it() -> None:
    assert importers("headway_rollout", "vllm") == {"weight_transfer.py", "cpu_lora.py"}


def test_the_contracts_import_nothing_heavy() -> None:
    heavy = {"torch", "vllm", "deepspeed", "transformers", "kopf", "kubernetes", "aiohttp", "numpy", "mlflow"}
    found = {library: importers("headway_api", library) for library in heavy}
    assert not {library: files for library, files in found.items() if files}


def test_sandbox_code_imports_the_standard_library_alone() -> None:
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
"""Files that may listen on a socket. A sandbox's server has only the standard library, and its own bounds."""


def listeners(path: Path) -> set[str]:
    """Which of `LISTENERS` a file calls or derives from."""
    named: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text())):
        named += [node.func] if isinstance(node, ast.Call) else []
        named += node.bases if isinstance(node, ast.ClassDef) else []
    return LISTENERS & {
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in named
    }


def test_only_the_bounded_servers_listen() -> None:
    found = {
        str(path.relative_to(root.parent)): " ".join(sorted(listeners(path)))
        for root in PACKAGES.values()
        for path in root.rglob("*.py")
        if "templates" not in path.parts  # an agent that `headway init` writes is the user's
        if listeners(path)
    }
    assert found == LISTENS


LISTED = re.compile(r"^(\w+\.py) {2,}\S", re.MULTILINE)
"""An entry in a package's docstring: a file, and its purpose."""


def test_a_package_lists_files_that_exist() -> None:
    listed = {
        path.parent / name
        for root in PACKAGES.values()
        for path in root.rglob("__init__.py")
        for name in LISTED.findall(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    }
    assert listed
    assert not {str(path.relative_to(ROOT)) for path in listed if not path.is_file()}


MAX_LINES_OF_A_FILE = 449
MAX_LINES_OF_A_FUNCTION = 63
LONGER = {
    "api/headway_api/metrics/episodes.py:behaviour": "a table of metrics, one entry after another",
    "cli/headway_cli/commands/eval.py:eval_": "each option of the command is a parameter",
    "coordinator/headway_coordinator/process.py:__init__": "it sets each part of the process, one a line",
    "coordinator/headway_coordinator/training.py:__init__": "it connects the parts of a training job",
}
"""Functions that may be longer than others, and why."""


def lengths(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file with its number of lines, from its first decorator to its end."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield f"{path.relative_to(ROOT)}:{node.name}", (node.end_lineno or node.lineno) - first + 1


def test_files_and_functions_can_be_read_at_a_sitting() -> None:
    paths = [
        path for root in PACKAGES.values() for path in root.rglob("*.py") if "templates" not in path.parts
    ]
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths
    }
    long = {name: count for name, count in lines.items() if count > MAX_LINES_OF_A_FILE}
    assert long == {}, f"divide it by subject: a file has at most {MAX_LINES_OF_A_FILE} lines"
    found = {name for path in paths for name, count in lengths(path) if count > MAX_LINES_OF_A_FUNCTION}
    assert found == set(LONGER), f"divide it: a function has at most {MAX_LINES_OF_A_FUNCTION} lines"


RAISED = re.compile(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
"""An entry of a docstring's section `Raises`."""


def names_known(tree: ast.AST) -> Iterator[str]:
    """Classes that a module defines, and all names that it imports."""
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


WITHOUT_A_CLOCK = {
    "headway_analysis": ("signals/", "remedies/"),
    "headway_coordinator": ("signals.py", "remedies/"),
}
"""Code that decides on signals and remedies, which must not read a clock. So a clock that jumps changes no
decision."""


@pytest.mark.parametrize("package", WITHOUT_A_CLOCK)
def test_signals_and_remedies_read_no_clock(package: str) -> None:
    found = {path for library in ("time", "datetime") for path in importers(package, library)}
    parts = WITHOUT_A_CLOCK[package]
    assert {path for path in found if path.startswith(parts)} == set()
    assert all((PACKAGES[package] / part).exists() for part in parts)


MAX_CHARACTERS_OF_A_TEST = 60


def test_a_test_s_name_can_be_read_in_one_line() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > MAX_CHARACTERS_OF_A_TEST
    ]
    assert long == [], f"shorten it to {MAX_CHARACTERS_OF_A_TEST} characters: what behaves how"


def test_no_two_modules_that_tests_import_share_a_name() -> None:
    """Tests put these folders on `sys.path`, so a second module of the same name would hide the first."""
    folders = [ROOT / "tests/support", *(ROOT / "hack").iterdir(), *(ROOT / "examples").iterdir()]
    modules = [each for folder in folders if folder.is_dir() for each in folder.glob("*.py")]
    found: dict[str, list[str]] = {}
    for each in modules:
        found.setdefault(each.stem, []).append(str(each.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_one_module_chooses_the_ports_of_tests() -> None:
    """If the kernel chose the port, another connection could take it before the test's process listens."""
    own = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^(async )?def \w*free_port\(", path.read_text(), re.MULTILINE)
    }
    assert own == {"tests/support/ports.py"}
