"""On a cluster that kubectl points at, the demo uses the images that `make images` has pushed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))
sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "images"))

from headway_images.catalogue import EXAMPLES, PULLED, environment_image

from headway_demo import images
from headway_demo.settings import Settings, SettingsError

PREFIX = "registry.example.com/headway"


def settings(**environ: str) -> Settings:
    return Settings.from_environ({"CLUSTER": "current", "IMAGE_PREFIX": PREFIX, **environ})


def test_every_image_asked_for_is_pushed_under_that_name() -> None:
    refs = images.provide(settings(IMAGE_TAG="0.1.0"))
    asked = {ref for part, ref in refs.items() if part not in images.published()}
    pushed = {*PULLED, *(environment_image(images.ROOT / folder).name for folder in EXAMPLES)}
    assert asked <= {f"{PREFIX}/{name}:0.1.0" for name in pushed}
    # The sandbox image itself is only the base of an environment's image.
    assert len(asked) == len(pushed - {"sandbox"})


def test_no_folder_of_this_machine_is_lent() -> None:
    assert images.host_mounts(settings()) == ([], [])
    values = images.chart_values(images.provide(settings()), settings())
    assert values["roleTemplates"] == {}
    assert values["image"] == f"{PREFIX}/operator:dev"


def test_without_a_registry_the_error_says_how_to_fill_one() -> None:
    with pytest.raises(SettingsError, match=r'make images IMAGE_ARGS="--push --prefix'):
        Settings.from_environ({"CLUSTER": "current"})


def test_make_passes_on_what_the_user_sets() -> None:
    """Once make has its own value of a variable, it passes that to every command instead of the user's."""
    settings_source = (images.ROOT / "hack/demo/headway_demo/settings.py").read_text()
    read = re.findall(r'environ(?:\.get\(|, )"(\w+)"', settings_source)
    assert {"CLUSTER", "IMAGE_PREFIX"} <= set(read)
    assigned = re.findall(r"^(\w+)\s*[:+]?=", (images.ROOT / "Makefile").read_text(), re.MULTILINE)
    assert not set(read) & set(assigned)


@pytest.mark.parametrize(("value", "kept"), [("1", True), ("", False), ("0", False)])
def test_the_cluster_is_left_up_only_if_asked(value: str, kept: bool) -> None:
    assert settings(KEEP=value).keep is kept
    assert settings().keep is False
