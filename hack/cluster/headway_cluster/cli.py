"""The command line of the local cluster; see `--help`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from . import binaries, extracted, host, kind, local, oci
from .errors import ClusterError
from .layout import Layout
from .locks import alone


def main(arguments: Sequence[str]) -> int:
    """Run one command, and return the exit status for the shell."""
    options = _parser().parse_args(arguments)
    layout = Layout.from_environment()
    # A plain `kill` should clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _dispatch(options, layout)
    except ClusterError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _dispatch(options: argparse.Namespace, layout: Layout) -> int:
    if options.command == "env":
        programs = binaries.folder(layout)
        print(f"export KUBECONFIG={shlex.quote(str(layout.admin_kubeconfig))}")
        print(f"export PATH={shlex.quote(str(programs))}:$PATH")
        return 0
    if options.command == "build":
        kinds = (binaries.KIND, *binaries.CLUSTER_PROGRAMS[:1])
        cluster = kinds if options.demo and host.docker_answers() else binaries.CLUSTER_PROGRAMS
        tests = () if options.demo else (binaries.VERDICTS,)
        print(binaries.build(layout, (*cluster, *binaries.TOOLS, *tests)))
        return 0
    if options.command == "tools":
        wanted = binaries.TOOLS + ((binaries.KWOK,) if options.kwok else ())
        print(binaries.build(layout, wanted))
        return 0
    if options.command in extracted.PROGRAMS:
        with alone(layout, extracted.PROGRAMS[options.command]):
            print(extracted.provide(layout, options.command))
        return 0
    if options.command == "verdicts":
        print(binaries.build(layout, (binaries.VERDICTS,)) / binaries.VERDICTS.name)
        return 0
    if options.command == "build-image":
        image = oci.Image(options.name, entrypoint=options.entrypoint or ())
        oci.write_archive(image, options.folder, options.output)
        return 0
    docker = host.docker_answers()
    if options.command == "status":
        return 0 if (kind.status(layout) if docker else local.status(layout)) else 1
    with alone(layout, "cluster"):
        if docker:
            _on_kind(options, layout)
        else:
            _on_host(options, layout)
    return 0


def _on_host(options: argparse.Namespace, layout: Layout) -> None:
    if options.command == "up":
        local.up(layout, keep_failed=options.keep_failed)
    elif options.command == "down":
        local.down(layout, keep_images=options.keep_images)
    else:
        local.load_image(layout, options.archive)


def _on_kind(options: argparse.Namespace, layout: Layout) -> None:
    if options.command == "up":
        kind.up(layout)
    elif options.command == "down":
        kind.down(layout)
    else:
        kind.load_image(layout, options.archive)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster.py", description="A local Kubernetes for Headway.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring the cluster up; returns at once where it is up")
    up.add_argument(
        "--keep-failed", action="store_true", help="keep what a failed start has left, to inspect it"
    )
    build = commands.add_parser("build", help="build every program that the cluster and its tests run")
    build.add_argument("--demo", action="store_true", help="only those that the demo runs")
    down = commands.add_parser("down", help="remove the cluster and every trace of it")
    down.add_argument("--keep-images", action="store_true", help="keep loaded images for next time")
    commands.add_parser("status", help="what runs; exit status 1 where the cluster is not well")
    commands.add_parser("env", help="shell lines that point kubectl and the tools here")
    load = commands.add_parser("load-image", help="load an OCI archive into the cluster")
    load.add_argument("archive", type=Path)
    build = commands.add_parser("build-image", help="write a folder as an OCI archive")
    build.add_argument("folder", type=Path)
    build.add_argument("name", help="as in localhost/headway/thing:1")
    build.add_argument("output", type=Path)
    build.add_argument("--entrypoint", nargs="+")
    tools = commands.add_parser("tools", help="build helm and versitygw; print where they are")
    tools.add_argument("--kwok", action="store_true", help="kwok as well")
    for program in extracted.PROGRAMS:
        commands.add_parser(program, help=f"take {program} from Debian; print where it is")
    commands.add_parser("verdicts", help="build what judges as GitOps tools do; print where it is")
    return parser
