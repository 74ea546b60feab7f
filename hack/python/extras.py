"""Compares each extra of pyproject.toml with the imports of its process, by means of deptry.

    extras.py            check all processes; exit code 1 if a check fails
    extras.py NAME ...   check only these processes

pyproject.toml has one distribution with an extra for each process. If deptry checked it as one project, the
learner's dependencies would hide a missing dependency of the operator. So this script shows deptry a separate
project for each process. The project has the process's extras, and all files that it imports, directly or
not.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    *("api/headway_api", "analysis/headway_analysis", "wire/headway_wire", "operator/headway_operator"),
    *("coordinator/headway_coordinator", "rollout/headway_rollout", "trainer/headway_trainer"),
    *("sandbox/headway_sandbox", "cli/headway_cli"),
)
BASE: Final = ("pydantic", "pydantic-core")
"""Packages that pyproject.toml declares for all extras."""
NO_PART: Final = "cli/headway_cli/templates"
"""Folder with the project templates of `headway init`. No code in this repository imports them."""


@dataclass(frozen=True)
class Process:
    """The extras of a process, and its code."""

    extras: tuple[str, ...]
    roots: tuple[str, ...]
    """Files and folders of the process's code, relative to the repository."""
    apart: tuple[str, ...] = ()
    """Files and folders within `roots`, or imported from there, that run in another process."""
    beside: tuple[str, ...] = ()
    """Further installed extras. This process need not use them, because other processes are checked for
    them."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Declared package that nothing imports -> why it is declared."""
    undeclared: Mapping[str, str] = field(default_factory=dict)
    """Imported module that is not declared -> why it may be missing."""


OF_TEACHING: Final = "`headway tiny-model` alone imports it, and says which extras to install"
TOOL: Final = "a tool that make runs"
TYPES: Final = "types for mypy"
PROCESSES: Final[Mapping[str, Process]] = {
    "operator": Process(("operator",), ("operator/headway_operator",)),
    "broker": Process(("broker",), ("sandbox/headway_sandbox/broker",)),
    "sandbox": Process(
        ("sandbox",),
        ("sandbox/headway_sandbox",),
        apart=(
            "sandbox/headway_sandbox/broker",
            "sandbox/headway_sandbox/testing",
            "sandbox/headway_sandbox/suites",
        ),
        unused=dict.fromkeys(BASE, "the distribution needs it; the sandbox image installs nothing"),
    ),
    "coordinator": Process(
        ("coordinator",),
        ("coordinator/headway_coordinator",),
        unused={
            "oss-harmony": "renderers imports its module openai_harmony for models of the gpt-oss family"
        },
    ),
    "rollout": Process(
        ("rollout", "rollout-cpu"),
        ("rollout/headway_rollout",),
        unused={"transformers": "vLLM imports it: the bound gives it the coordinator's tokenizer"},
        undeclared={"torch": "vLLM pins the build that it was compiled with"},
    ),
    "trainer": Process(("trainer",), ("trainer/headway_trainer",)),
    "cli": Process(
        ("cli",),
        ("cli/headway_cli",),
        undeclared={
            "pandas": "only `metrics()` imports it, and says that it is missing",
            "inspect_ai": "only `headway trajectories --output inspect` imports it, and says what to install",
            **dict.fromkeys(("renderers", "safetensors", "torch", "transformers"), OF_TEACHING),
        },
    ),
    "dev": Process(
        ("dev",),
        ("api", "analysis", "wire", "sandbox", "tests", "bench", "hack", "examples"),
        # These files run in the environments of guests (requirements/guests).
        apart=(
            "tests/integration/coordinator/guests",
            "tests/integration/pages/visit.py",
            "tests/support/mistral_templates.py",
            "tests/support/tinker_merge.py",
        ),
        unused={
            **dict.fromkeys(("deptry", "mypy", "ruff"), TOOL),
            **dict.fromkeys(("pytest-asyncio", "pytest-timeout", "pytest-xdist"), "a plugin of pytest"),
            **dict.fromkeys(("types-boto3", "types-jsonschema", "types-psutil", "types-pyyaml"), TYPES),
        },
        undeclared={
            "trl": "requirements/oracles.in has it, and the benchmark says so",
            "xgrammar": "vLLM's; its test compares with the version that vLLM brings",
        },
        beside=("operator", "broker", "coordinator", "rollout", "rollout-cpu", "trainer", "cli"),
    ),
}
"""All processes, and as `dev` the programs that check and build them. Together they cover every file."""


class UndeclaredExtrasError(Exception):
    """The configuration in this file does not fit the repository; the message says what to write."""


def python_files(path: Path) -> Iterator[Path]:
    """The Python file at a path, or all Python files below it, except templates of `headway init`."""
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        if not file.is_relative_to(ROOT / NO_PART):
            yield file


def modules() -> dict[str, Path]:
    """Every module of Headway, by its dotted name."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        home = (ROOT / package).parent
        for file in python_files(ROOT / package):
            parts = file.relative_to(home).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imported(source: str) -> frozenset[str]:
    """Dotted names of modules that a source may import, at any place in it. Relative imports are ignored."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def reached(starts: Iterable[Path], known: Mapping[str, Path], apart: Sequence[Path] = ()) -> set[Path]:
    """`starts` and the files that they import, directly or not, without those in `apart`."""
    found: set[Path] = set()
    waiting = list(starts)
    while waiting:
        file = waiting.pop()
        if file in found or any(file.is_relative_to(other) for other in apart):
            continue
        found.add(file)
        for name in imported(file.read_text()):
            parts = name.split(".")
            # An import of a.b.c also runs a and a.b.
            packages = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
            waiting += [known[each] for each in packages if each in known]
    return found


def files_of(process: Process, known: Mapping[str, Path]) -> list[Path]:
    """The files of this repository that a process can import, sorted."""
    for path in (*process.roots, *process.apart):
        if not (ROOT / path).exists():
            raise UndeclaredExtrasError(f"{path} does not exist: correct it in hack/python/extras.py")
    starts = [file for root in process.roots for file in python_files(ROOT / root)]
    return sorted(reached(starts, known, [ROOT / path for path in process.apart]))


def of_ours(files: Iterable[Path]) -> list[str]:
    """Names of this repository's top-level modules.

    They are Headway's packages, and the modules that tests and tools import from their own folders.
    """
    plain = [file for file in files if not any(file.is_relative_to(ROOT / each) for each in PACKAGES)]
    beside = {name for file in plain for name in (file.stem, *file.relative_to(ROOT).parts[:-1])}
    return sorted(beside | {Path(package).name for package in PACKAGES})


def project(process: Process, ours: Sequence[str], pyproject: Mapping[str, Any]) -> str:
    """The text of a pyproject.toml for only this process, which deptry reads."""
    extras = pyproject["project"]["optional-dependencies"]
    if missing := [extra for extra in (*process.extras, *process.beside) if extra not in extras]:
        raise UndeclaredExtrasError(
            f"pyproject.toml has no extra {missing[0]}: correct it in hack/python/extras.py"
        )
    held = [
        *pyproject["project"]["dependencies"],
        *(each for extra in process.extras for each in extras[extra]),
    ]
    others = [each for extra in process.beside for each in extras[extra]]
    may_be_unused = {*process.unused, *({named(each) for each in others} - {named(each) for each in held})}
    if stale := sorted(set(process.unused) - {named(each) for each in held}):
        raise UndeclaredExtrasError(
            f"{stale[0]} is excepted and not declared: remove it in hack/python/extras.py"
        )
    lines = [
        "[project]",
        'name = "one-process"',
        f"dependencies = {sorted({*held, *others})}",
        "[tool.deptry]",
        f"known_first_party = {list(ours)}",
        "[tool.deptry.per_rule_ignores]",
        f"DEP001 = {sorted(process.undeclared)}",
        f"DEP002 = {sorted(may_be_unused)}",
        f"DEP003 = {sorted(process.undeclared)}",
    ]
    return "\n".join(lines) + "\n"


def named(requirement: str) -> str:
    """The name of the package in a requirement, spelled as there."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def check(name: str) -> tuple[int, str]:
    """deptry's exit code and output for one process. deptry checks a folder, so the files are copied into
    one."""
    process = PROCESSES[name]
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(process, modules())
        for file in files:
            copy = Path(folder) / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
        (Path(folder) / "pyproject.toml").write_text(project(process, of_ours(files), pyproject))
        # By default deptry leaves out folders named tests.
        command = [sys.executable, "-m", "deptry", "--no-ansi", "--exclude", "$^", "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROCESSES))
    names = parser.parse_args(arguments).names or list(PROCESSES)
    if unknown := set(names) - set(PROCESSES):
        parser.error(f"there is no process {sorted(unknown)[0]}: write one of {', '.join(PROCESSES)}")
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = dict(zip(names, pool.map(check, names), strict=True))
    except UndeclaredExtrasError as error:
        print(f"[extras] {error}", file=sys.stderr)
        return 1
    for name, (code, words) in found.items():
        if code:
            print(f"[extras] {name}:\n{words}", file=sys.stderr)
    wrong = [name for name, (code, _) in found.items() if code]
    print(
        f"[extras] {len(found) - len(wrong)} of {len(found)} processes declare what they import",
        file=sys.stderr,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
