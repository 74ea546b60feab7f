"""An image is built again exactly if something changed that determines its content."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "images"))

from headway_images.catalogue import Image, catalogue, environment_image
from headway_images.content import files_of, key
from headway_images.settings import ROOT
from headway_images.shell import BuildError

IMAGES = {
    "base": Image("base", "base", base=None),
    "deps": Image("deps", "app", inputs=("lock.txt",), target="deps"),
    "app": Image("app", "app", "deps", ("code",), base_argument="DEPS"),
}
DOCKERFILE = "FROM ${BASE} AS deps\nRUN install\n\nFROM ${DEPS}\nRUN copy\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small repository."""
    for name in ("base", "app", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / "base" / "packages.txt").write_text("python3\n")
    (tmp_path / "app" / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "lock.txt").write_text("numpy==2\n")
    (tmp_path / "code" / "main.py").write_text("print()\n")
    return tmp_path


def keys(root: Path) -> dict[str, str]:
    return {name: key(image, IMAGES, root) for name, image in IMAGES.items()}


def changed(root: Path, change: Callable[[], object]) -> set[str]:
    """Images whose key a change alters."""
    before = keys(root)
    change()
    after = keys(root)
    return {name for name in before if before[name] != after[name]}


def test_without_a_change_nothing_is_built(root: Path) -> None:
    assert changed(root, lambda: os.utime(root / "lock.txt", (1, 1))) == set()


@pytest.mark.parametrize(
    ("file", "text", "rebuilt"),
    [
        ("base/packages.txt", "python3\ncurl\n", {"base", "deps", "app"}),
        ("lock.txt", "numpy==3\n", {"deps", "app"}),
        ("code/main.py", "print(1)\n", {"app"}),
        ("code/new.py", "", {"app"}),
        ("code/__pycache__/main.pyc", "", set()),
    ],
)
def test_a_change_rebuilds_what_depends_on_it(root: Path, file: str, text: str, rebuilt: set[str]) -> None:
    (root / file).parent.mkdir(exist_ok=True)
    assert changed(root, lambda: (root / file).write_text(text)) == rebuilt


def test_the_last_stage_of_a_dockerfile_installs_nothing_again(root: Path) -> None:
    dockerfile = root / "app" / "Dockerfile"
    assert changed(root, lambda: dockerfile.write_text(DOCKERFILE.replace("copy", "copy all"))) == {"app"}
    assert changed(root, lambda: dockerfile.write_text(DOCKERFILE.replace("install", "set up"))) == {
        "deps",
        "app",
    }


def test_a_program_that_becomes_executable_counts(root: Path) -> None:
    assert changed(root, lambda: (root / "code" / "main.py").chmod(0o755)) == {"app"}


@pytest.mark.parametrize("lock", ["rollout-cpu", "rollout-gpu"])
def test_every_image_of_the_catalogue_has_what_it_is_made_of(lock: str) -> None:
    images = catalogue(lock)
    for image in images.values():
        assert image.base is None or image.base in images
        assert all((ROOT / path).exists() for path in (image.folder, *image.inputs)), image.name
        assert (ROOT / image.folder / "Dockerfile").is_file()


def test_dockerfile_and_catalogue_agree_on_the_stage() -> None:
    for image in catalogue("rollout-cpu").values():
        if image.target:
            text = (ROOT / image.folder / "Dockerfile").read_text()
            assert text.count("\nFROM ${DEPS}\n") == 1


def test_another_lock_gives_another_image() -> None:
    cpu, gpu = catalogue("rollout-cpu"), catalogue("rollout-gpu")
    assert key(cpu["rollout"], cpu) != key(gpu["rollout"], gpu)
    assert key(cpu["trainer"], cpu) == key(gpu["trainer"], gpu)


def test_the_gpu_build_of_the_servers_has_a_compiler() -> None:
    """images/rollout/Dockerfile explains why it needs one."""
    wanted = (ROOT / "images/rollout/Dockerfile").read_text().split('wants "')[1].split('"')[0]
    assert f"EXTRA_PACKAGES={wanted}" in catalogue("rollout-gpu")["rollout-deps"].arguments
    assert not any("EXTRA_PACKAGES" in text for text in catalogue("rollout-cpu")["rollout-deps"].arguments)


def test_an_environment_image_uses_sandbox_base_and_own_folder(root: Path) -> None:
    image = environment_image(root / "app")
    assert (image.name, image.base, image.own_context) == ("app", "sandbox", True)


def test_the_current_folder_gives_an_image_its_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "app")
    assert environment_image(Path(".")).name == "app"


def test_a_suite_builds_on_the_image_that_its_dockerfile_names() -> None:
    image = environment_image(ROOT / "examples" / "suites")
    assert image.base == "suite"
    assert catalogue("rollout-cpu")[image.base].base == "sandbox"


def test_a_folder_without_a_dockerfile_is_refused(root: Path) -> None:
    with pytest.raises(BuildError, match="neither an image of Headway nor a folder"):
        environment_image(root / "code")


def test_a_folders_files_have_a_fixed_order(root: Path) -> None:
    for name in ("b.py", "a.py"):
        (root / "code" / name).touch()
    assert [path.name for path in files_of(root / "code")] == ["a.py", "b.py", "main.py"]
