"""The wheel as a user installs it: its commands, the templates in it, and its types."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "python"))

import env
from env import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]
"""The tests build the wheel, and mypy reads all that a user's script imports: two minutes."""
SCRIPT = """
from headway_cli.client import TrainingClient
run = TrainingClient(local=True).train("job.yaml")
reveal_type(run.wait())
"""
STATUS = 'Revealed type is "headway_api.status.training.RLTrainingJobStatus"'


def run(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program without this checkout in its path."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**kept, **more}, text=True, capture_output=True
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel, and with the packages of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = env.bootstrap_uv()
    constraints = ("--build-constraints", ROOT / "requirements" / "build.txt")
    build = (uv, "build", "--wheel", *constraints, "--out-dir", folder, ROOT)
    built = run(*build, cwd=folder, **env.uv_options())
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    into = ("--python", python, "--no-deps", wheel)
    done = run(uv, "pip", "install", *into, cwd=folder, **env.uv_options())
    assert done.returncode == 0, done.stderr
    own = next((folder / "venv" / "lib").glob("python*/site-packages"))
    # Python reads no .pth file in a folder that this file names, so it does not find the checkout.
    (own / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python.parent


def test_packages_are_imported_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    asked = "import headway_cli, headway_api; print(headway_cli.__file__, headway_api.__file__)"
    done = run(installed / "python", "-c", asked, cwd=tmp_path)
    assert all(word.startswith(str(installed.parent)) for word in done.stdout.split()), done


def test_a_project_is_written_from_the_wheels_templates(installed: Path, tmp_path: Path) -> None:
    for template in ("replay", "stateful", "verifiable", "agent-http"):
        done = run(installed / "headway", "init", template, "--template", template, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert {"job.yaml", "environment.py"} <= {path.name for path in (tmp_path / template).iterdir()}


def test_kubectl_finds_the_plugin(installed: Path, tmp_path: Path) -> None:
    """kubectl finds the program `kubectl-headway` on the PATH and passes it the words after `headway`."""
    plain = run(installed / "headway", "watch", "--help", cwd=tmp_path, COLUMNS="100")
    done = run(installed / "kubectl-headway", "watch", "--help", cwd=tmp_path, COLUMNS="100")
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert "Follow a job on a cluster to its end" in done.stdout
    done = run(installed / "kubectl_complete-headway", "tra", cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == ":4", done
    assert done.stdout.startswith("trajectories\t")


def test_a_users_script_is_typed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text(SCRIPT.replace("local=True", "lokal=True"))
    words = (sys.executable, "-m", "mypy", "--strict", "--python-executable", installed / "python")
    words = (*words, "--cache-dir", tmp_path / "cache", "--config-file", os.devnull)
    done = run(*words, "script.py", cwd=tmp_path)
    assert STATUS in done.stdout, done
    assert done.returncode == 0, done.stdout
    done = run(*words, "wrong.py", cwd=tmp_path)
    assert done.returncode == 1
    assert 'Unexpected keyword argument "lokal" for "TrainingClient"' in done.stdout


@pytest.mark.parametrize("package", sorted(ROOT.glob("*/headway_*/")), ids=lambda path: path.name)
def test_every_package_says_that_it_is_typed(package: Path, installed: Path) -> None:
    [own] = (installed.parent / "lib").glob("python*/site-packages")
    assert (own / package.name / "py.typed").is_file()
