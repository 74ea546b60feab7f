"""The command line for building images."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .builder import Builder
from .catalogue import EXAMPLES, PULLED, catalogue, environment_image
from .engines import choose_engine
from .references import LOCAL, TAG, check
from .settings import ROOT
from .shell import BuildError, run, say


def main(arguments: Sequence[str], description: str | None) -> int:
    """Build the named images and print their names. Return the exit status for the shell."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "images", nargs="*", help="base, host, operator, sandbox, rollout, trainer, or a folder"
    )
    parser.add_argument("--all", action="store_true", help="what a cluster pulls, the examples' included")
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--load", action="store_true", help="into the cluster of this machine")
    then.add_argument("--push", action="store_true", help="into the registry that --prefix begins with")
    parser.add_argument("--prefix", default=LOCAL, help=f"in front of the images' names (default: {LOCAL})")
    parser.add_argument("--tag", default=TAG, help=f"behind them (default: {TAG})")
    parser.add_argument("--rollout-lock", default="rollout-cpu", choices=("rollout-cpu", "rollout-gpu"))
    options = parser.parse_args(arguments)
    images = catalogue(options.rollout_lock)
    pulled = (*PULLED, *(str(ROOT / folder) for folder in EXAMPLES))
    names = [*(pulled if options.all else ()), *options.images]
    if not names:
        parser.error("name the images, or --all")
    try:
        check(options.prefix, options.tag, push=options.push)
        builder = Builder(choose_engine, images, options.prefix, options.tag)
        for name in dict.fromkeys(names):
            image = images.get(name) or environment_image(Path(name))
            if options.push:
                builder.push(image)
                print(builder.reference(image), flush=True)
            else:
                archive = builder.build(image)
                print(f"{builder.reference(image)}\t{archive}", flush=True)
                if options.load:
                    run(sys.executable, ROOT / "hack/cluster/cluster.py", "load-image", archive)
    except BuildError as error:
        say(str(error))
        return 1
    return 0
