"""The demo's settings, read once from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "headway-demo"
"""Namespace of the job, the object store and MLflow."""
SYSTEM_NAMESPACE = "headway-system"
"""Namespace of the operator."""
BUCKET = "headway"


class SettingsError(Exception):
    """An environment variable has a value that the demo cannot use."""


@dataclass(frozen=True)
class Settings:
    """Settings of one run of the demo."""

    keep: bool
    """`KEEP=1`: leave the cluster and the job running."""
    current_cluster: bool
    """`CLUSTER=current`: use kubectl's current cluster instead of starting one."""
    image_prefix: str
    """`IMAGE_PREFIX`: the registry path to which `make images` pushed. `CLUSTER=current` requires it."""
    image_tag: str
    """`IMAGE_TAG`: the tag of the images."""
    seed: int
    """`SEED`: seed of data order, sampling and initialization."""
    max_steps: int | None
    """`STEPS`: number of training steps, instead of the example's."""
    output: Path
    """`OUTPUT`: folder of the report."""
    begun: int | None
    """`DEMO_BEGUN`: Unix time at which the command began, before the Python environment existed.

    `make demo` sets it.
    """

    @property
    def cache(self) -> Path:
        """Folder for files that can be made again."""
        return Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """The settings in environment variables.

        Raises:
            SettingsError: a value cannot be used; the message names the variable.
        """
        cluster = environ.get("CLUSTER", "local")
        if cluster not in ("local", "current"):
            raise SettingsError(f"CLUSTER={cluster!r}: write 'local' (the default) or 'current'")
        prefix = environ.get("IMAGE_PREFIX", "")
        if cluster == "current" and not prefix:
            raise SettingsError(
                "CLUSTER=current needs IMAGE_PREFIX: the registry path the images were pushed to, such as "
                "IMAGE_PREFIX=registry.example.com/headway (with "
                'make images IMAGE_ARGS="--push --prefix registry.example.com/headway")'
            )
        return cls(
            keep=environ.get("KEEP", "") not in ("", "0"),
            current_cluster=cluster == "current",
            image_prefix=prefix or "localhost/headway",
            image_tag=environ.get("IMAGE_TAG") or "dev",
            seed=_whole(environ, "SEED", 0),
            max_steps=_whole(environ, "STEPS", 0) or None,
            output=Path(environ.get("OUTPUT", ROOT / "build" / "demo")),
            begun=_whole(environ, "DEMO_BEGUN", 0) or None,
        )


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not text.isdecimal():
        raise SettingsError(f"{name}={text!r}: write a whole number")
    return int(text)
