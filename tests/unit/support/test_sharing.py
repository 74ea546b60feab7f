"""If several processes share the tests, one process runs all tests on the cluster, and no file is split."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[2] / "conftest.py"
TEST = """
import json, os, pathlib, pytest

@pytest.fixture
def cluster():
    return None

@pytest.mark.parametrize("n", range(3))
def test_it(n{also}):
    place = {{"file": "{name}", "process": os.environ["PYTEST_XDIST_WORKER"]}}
    with pathlib.Path("{log}").open("a") as log:
        log.write(json.dumps(place) + "\\n")
"""
FILES = {
    "tests/integration/operator/test_a.py": ", cluster",
    "tests/integration/sandbox/test_broker.py": ", cluster",
    "tests/integration/cluster/test_down.py": "",
    "tests/integration/trainer/test_c.py": "",
    "tests/unit/test_d.py": "",
    "tests/unit/test_e.py": "",
}


def run(folder: Path, files: dict[str, str], processes: int = 3) -> subprocess.CompletedProcess[str]:
    """Run these tests with this repository's conftest. Each test records in `folder`/places where it ran."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (folder / "tests").mkdir()
    (folder / "tests" / "conftest.py").write_text(CONFTEST.read_text())
    for name, also in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(TEST.format(name=name, also=also, log=folder / "places"))
    options = ["-n", str(processes), "--no-loadscope-reorder", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests"], cwd=folder, capture_output=True, text=True
    )


def test_one_process_has_the_cluster_and_no_file_is_split(tmp_path: Path) -> None:
    done = run(tmp_path, FILES)
    assert done.returncode == 0, done.stdout
    found: dict[str, set[str]] = {name: set() for name in FILES}
    for line in (tmp_path / "places").read_text().splitlines():
        place = json.loads(line)
        found[place["file"]].add(place["process"])
    assert {len(ran) for ran in found.values()} == {1}
    on_cluster = [found[name] for name in list(FILES)[:3]]
    assert on_cluster[0] == on_cluster[1] == on_cluster[2]
    assert len(set.union(*found.values())) > 1, "nothing was shared"


def test_a_file_that_uses_the_cluster_must_be_listed(tmp_path: Path) -> None:
    done = run(tmp_path, {"tests/integration/trainer/test_c.py": ", cluster"}, processes=0)
    assert done.returncode != 0
    assert "trainer/test_c.py uses the cluster: add it to ON_CLUSTER" in done.stdout + done.stderr
