"""`headway image`: how it calls a builder, what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from headway_cli import images
from headway_cli.commands.image import image
from headway_cli.images import ImageError

DIGEST = "sha256:" + "ab" * 32
BUILDAH = f"""#!/bin/sh
echo "$@" >> "$RECORD"
echo "STEP 1/2: FROM headway-sandbox"
[ -n "$FAILS" ] && {{ echo "no such base" >&2; exit 125; }}
[ "$1" = push ] && [ "$2" = --digestfile ] && [ -z "$SILENT" ] && printf {DIGEST} > "$3"
exit 0
"""
DOCKER = f"""#!/bin/sh
echo "$@" >> "$RECORD"
[ "$1" = push ] && echo "1: digest: {DIGEST} size: 1234"
exit 0
"""
app = typer.Typer()
app.command()(image)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's folder. The PATH has only a shell, and what a test adds."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "Dockerfile").write_text("ARG BASE=headway-sandbox\nFROM ${BASE}\n")
    return folder


def program(desk: Path, name: str, script: str) -> None:
    path = desk.parent / "bin" / name
    path.write_text(script)
    path.chmod(0o755)


def asked(desk: Path) -> list[str]:
    """Command lines that the builder received."""
    return (desk.parent / "record").read_text().splitlines()


def run(desk: Path, *options: str) -> Result:
    return CliRunner().invoke(app, [str(desk), *options])


def test_buildah_builds_and_its_output_is_apart_from_the_result(desk: Path) -> None:
    program(desk, "buildah", BUILDAH)
    program(desk, "docker", DOCKER)
    done = run(desk)
    assert done.exit_code == 0, done.stderr
    assert asked(desk) == [f"build -t localhost/headway/desk:dev -f {desk}/Dockerfile {desk}"]
    assert done.stdout == "spec.environment.image: localhost/headway/desk:dev\n"
    assert "STEP 1/2: FROM headway-sandbox" in done.stderr
    assert "for a cluster write --push --tag registry.example.com/team/desk:1" in done.stderr


def test_the_base_takes_the_place_of_the_dockerfiles_argument(desk: Path) -> None:
    program(desk, "buildah", BUILDAH)
    assert run(desk, "--base", "registry.example.com/headway/sandbox:1").exit_code == 0
    assert asked(desk)[0].startswith("build --build-arg BASE=registry.example.com/headway/sandbox:1 -t ")


def test_a_push_prints_the_image_by_its_digest(desk: Path) -> None:
    program(desk, "buildah", BUILDAH)
    done = run(desk, "--push", "--tag", "registry.example.com:5000/team/desk:1", "--output", "json")
    assert done.exit_code == 0, done.stderr
    found = {"image": f"registry.example.com:5000/team/desk@{DIGEST}", "pushed": True}
    assert json.loads(done.stdout) == found
    pushed = asked(desk)[1].split()
    assert pushed[:2] == ["push", "--digestfile"]
    assert pushed[3:] == [
        "registry.example.com:5000/team/desk:1",
        "docker://registry.example.com:5000/team/desk:1",
    ]


def test_docker_builds_and_pushes_where_there_is_no_buildah(desk: Path) -> None:
    program(desk, "docker", DOCKER)
    done = run(desk, "--push", "--tag", "registry.example.com/desk")
    assert done.exit_code == 0, done.stderr
    assert asked(desk)[1] == "push registry.example.com/desk:dev"
    assert done.stdout == f"spec.environment.image: registry.example.com/desk@{DIGEST}\n"


def test_without_a_builder_the_error_says_what_to_install(desk: Path) -> None:
    done = run(desk)
    assert done.exit_code == 2
    assert "install buildah (apt-get install buildah) or docker" in done.stderr


def test_a_build_that_fails_ends_with_1_and_prints_no_image(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(desk, "buildah", BUILDAH)
    monkeypatch.setenv("FAILS", "1")
    done = run(desk, "--push", "--tag", "registry.example.com/desk:1")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "no such base" in done.stderr
    assert "`buildah build` ended with status 125" in done.stderr
    assert "if headway-sandbox is not on this machine, write --base" in done.stderr
    assert len(asked(desk)) == 1
    assert "write --base" not in run(desk, "--base", "registry.example.com/sandbox:1").stderr


def test_a_push_without_a_digest_has_failed(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(desk, "buildah", BUILDAH)
    monkeypatch.setenv("SILENT", "1")
    done = run(desk, "--push", "--tag", "registry.example.com/desk:1")
    assert done.exit_code == 1
    assert "buildah pushed registry.example.com/desk:1 but reported no digest" in done.stderr


def test_a_program_that_cannot_be_started_is_an_error(desk: Path) -> None:
    program(desk, "buildah", "#!/nowhere/sh\n")
    done = run(desk)
    assert done.exit_code == 1
    assert "buildah cannot be started: No such file or directory" in done.stderr


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_with_no_dockerfile_is_refused_before_any_build(desk: Path, there: bool) -> None:
    program(desk, "buildah", BUILDAH)
    folder = desk.parent / "empty"
    if there:
        folder.mkdir()
    done = run(folder)
    assert done.exit_code == 2
    assert ("has no Dockerfile" if there else "is not a folder") in done.stderr
    assert not (desk.parent / "record").exists()


@pytest.mark.parametrize("name", ["Desk", "my desk", "-desk"])
def test_a_folders_name_that_no_image_may_have_needs_a_tag(desk: Path, name: str) -> None:
    folder = desk.rename(desk.parent / name)
    with pytest.raises(ImageError, match="is not REGISTRY/NAME:TAG with a name in lower case: write --tag"):
        images.order(folder, None, None, push=False)
    assert images.order(folder, "desk.example/desk:2", None, push=False).reference == "desk.example/desk:2"


@pytest.mark.parametrize("tag", [None, "localhost/headway/desk:1", "team/desk:1"])
def test_a_push_needs_a_registry(desk: Path, tag: str | None) -> None:
    with pytest.raises(ImageError, match="names no registry to push to: write --tag registry"):
        images.order(desk, tag, None, push=True)
    assert images.order(desk, "localhost:5000/desk:1", None, push=True).reference == "localhost:5000/desk:1"


@pytest.mark.parametrize("tag", ["", "desk", "Registry.example.com/desk", "a/b:c:d", "a/b@sha256:00", "a//b"])
def test_an_invalid_image_name_is_refused(desk: Path, tag: str) -> None:
    if tag:
        with pytest.raises(ImageError, match="is not REGISTRY/NAME:TAG"):
            images.order(desk, tag, None, push=False)
    else:
        assert images.order(desk, tag, None, push=False).reference == "localhost/headway/desk:dev"


def test_ctrl_c_ends_with_130(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    program(desk, "buildah", BUILDAH)
    monkeypatch.setattr(images, "build", interrupted)
    done = run(desk)
    assert (done.exit_code, done.stdout) == (130, "")
