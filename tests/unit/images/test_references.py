"""Invalid image names are refused before a build of several minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "images"))

from headway_images import cli
from headway_images.catalogue import EXAMPLES, PULLED, catalogue, environment_image
from headway_images.references import LOCAL, TAG, check
from headway_images.settings import ROOT
from headway_images.shell import BuildError


@pytest.mark.parametrize(
    "prefix",
    [
        "registry.example.com/headway",
        "registry.example.com",
        "registry.example.com:5000/team_a/head--way",
        "localhost:5000/headway",
        "docker.io/someone",
        "123456789012.dkr.ecr.eu-central-1.amazonaws.com/headway",
    ],
)
def test_a_registry_may_be_pushed_to(prefix: str) -> None:
    check(prefix, "0.1.0", push=True)


@pytest.mark.parametrize("prefix", [LOCAL, "someone/headway", "headway"])
def test_a_prefix_without_a_registry_is_for_this_machine_only(prefix: str) -> None:
    check(prefix, TAG, push=False)
    with pytest.raises(BuildError, match="--push needs a registry"):
        check(prefix, TAG, push=True)


@pytest.mark.parametrize(
    ("prefix", "tag", "option"),
    [
        ("", TAG, "--prefix"),
        ("registry.example.com/", TAG, "--prefix"),
        ("registry.example.com/Headway", TAG, "--prefix"),
        ("https://registry.example.com/headway", TAG, "--prefix"),
        ("registry.example.com/head way", TAG, "--prefix"),
        (LOCAL, "", "--tag"),
        (LOCAL, "-1", "--tag"),
        (LOCAL, "a/b", "--tag"),
        (LOCAL, "a" * 129, "--tag"),
    ],
)
@pytest.mark.parametrize("push", [False, True])
def test_text_that_cannot_be_part_of_a_name_is_refused(
    prefix: str, tag: str, option: str, push: bool
) -> None:
    with pytest.raises(BuildError, match=option):
        check(prefix, tag, push=push)


def test_all_means_the_images_that_a_cluster_pulls() -> None:
    assert set(PULLED) <= set(catalogue("rollout-cpu"))
    assert [environment_image(ROOT / folder).name for folder in EXAMPLES] == ["sop-quickstart"]


def test_the_command_refuses_a_name_before_it_builds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--all", "--push"], None) == 1
    assert "registry.example.com/headway" in capsys.readouterr().err
