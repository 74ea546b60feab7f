"""`headway image`: builds and pushes an environment's image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway_cli import images
from headway_cli.commands.common import FAILED, INTERRUPTED, Form, Output, note, told


def image(
    folder: Annotated[Path, typer.Argument(help="With the environment's Dockerfile.")],
    tag: Annotated[
        str | None, typer.Option(help="Name of the image; default: localhost/headway/FOLDER:dev.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Sandbox image to build on, in the place of the Dockerfile's BASE.")
    ] = None,
    push: Annotated[bool, typer.Option("--push", help="Push it to the registry that --tag names.")] = False,
    output: Output = Form.TEXT,
) -> None:
    """Build an environment's image with buildah or docker, and print its name."""
    with told():
        wanted = images.order(folder, tag, base, push=push)
        program = images.builder()
    try:
        images.build(program, wanted, note)
        reference = images.push(program, wanted.reference, note) if push else wanted.reference
    except images.BuilderFailed as error:
        note(f"headway: {error}; its own words are above")
        if (base := images.base_of(wanted)) is not None:
            note(f"where {base} is not on this machine, write --base registry.example.com/headway/sandbox:1")
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        note("stopped")
        raise typer.Exit(INTERRUPTED) from None
    if output is Form.JSON:
        typer.echo(json.dumps({"image": reference, "pushed": push}))
        return
    typer.echo(f"spec.environment.image: {reference}")
    if not push:
        note(
            "it is on this machine alone; for a cluster write --push --tag registry.example.com/team/"
            f"{folder.resolve().name}:1"
        )
