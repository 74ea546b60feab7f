"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .builder import Builder
from .catalogue import catalogue, environment_image
from .engines import choose_engine
from .settings import ROOT
from .shell import BuildError, run, say


def main(arguments: Sequence[str], description: str | None) -> int:
    """Build and print what is asked for; the exit status for the shell."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "images", nargs="*", help="base, host, operator, sandbox, rollout, trainer, or a folder"
    )
    parser.add_argument("--all", action="store_true", help="every image of Headway")
    parser.add_argument("--load", action="store_true", help="into the cluster of this machine")
    parser.add_argument("--prefix", default="localhost/headway", help="in front of the images' names")
    parser.add_argument("--tag", default="dev")
    parser.add_argument(
        "--rollout-lock", default="rollout-cpu", choices=("rollout-cpu", "rollout-gpu", "rollout")
    )
    options = parser.parse_args(arguments)
    images = catalogue(options.rollout_lock)
    names = [
        *((name for name, image in images.items() if not image.target) if options.all else ()),
        *options.images,
    ]
    if not names:
        parser.error("name the images, or --all")
    try:
        builder = Builder(choose_engine, images, options.prefix, options.tag)
        for name in dict.fromkeys(names):
            image = images.get(name) or environment_image(Path(name))
            archive = builder.build(image)
            print(f"{builder.reference(image)}\t{archive}", flush=True)
            if options.load:
                run(sys.executable, ROOT / "hack/cluster/cluster.py", "load-image", archive)
    except BuildError as error:
        say(str(error))
        return 1
    return 0
