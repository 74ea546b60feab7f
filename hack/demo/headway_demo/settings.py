"""What a user may choose by environment variables, read once."""

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
    """A variable has a value the demo cannot use."""


@dataclass(frozen=True)
class Settings:
    """One run of the demo."""

    keep: bool
    """`KEEP=1`: leave the cluster and the job up."""
    current_cluster: bool
    """`CLUSTER=current`: use the cluster kubectl points at instead of starting one."""
    image_prefix: str
    """`IMAGE_PREFIX`: where `make images` pushed to; needed on a cluster that is not this machine."""
    image_tag: str
    """`IMAGE_TAG`: the images' tag."""
    seed: int
    """`SEED`: seed of data order, sampling and initialization."""
    max_steps: int | None
    """`STEPS`: fewer optimizer steps than the example's."""
    output: Path
    """`OUTPUT`: folder of the report."""
    begun: int | None
    """`DEMO_BEGUN`: Unix time of the command, before there was a Python to run this; `make demo` sets it."""

    @property
    def cache(self) -> Path:
        """Folder of everything that can be made again."""
        return Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Raises SettingsError with the variable's name."""
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
