"""`hack/house.py`, which measures the size of the code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "hack" / "house.py"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    spec.loader.exec_module(module)
    return module


def test_files_functions_types_and_comments_are_counted(house: ModuleType) -> None:
    counts = house.Counts()
    text = '''\
        # one
        @cache
        def typed(a: int, *, b: str = "# none") -> int:
            """Two lines less its decorator."""
            return a  # two

        class Some:
            def method(self, *rest) -> None: ...
            async def other(cls): ...
        '''
    house.count(dedent(text), counts)
    assert counts.files == [9]
    assert sorted(counts.functions) == [1, 1, 4]
    assert counts.annotated == 1
    assert counts.comments == 2
    assert counts.row("x") == "| x | 9 | 9 (9) | 1 (4) | 33 % | 22.2 |"


def test_an_empty_list_has_no_median(house: ModuleType) -> None:
    assert house.Counts().row("x") == "| x | 0 | - | - | - % | 0.0 |"


def test_files_written_for_users_are_left_out(house: ModuleType, tmp_path: Path) -> None:
    for name in ("own.py", "templates/theirs.py", "deep/own.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a = 1\n")
    assert [path.name for path in house.python_files(tmp_path)] == ["own.py", "own.py"]


def test_the_table_has_a_row_for_each_package() -> None:
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    rows = [line.split("|")[1].strip() for line in ran.stdout.splitlines()[2:]]
    packages = {path.parent.name for path in ROOT.glob("*/headway_*")}
    assert set(rows) == packages | {"all"}


def test_a_folder_that_is_not_there_is_named() -> None:
    ran = subprocess.run([sys.executable, SCRIPT, "nowhere"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (2, "nowhere: no such folder\n")
