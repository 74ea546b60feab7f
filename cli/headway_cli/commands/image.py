"""`headway image`: builds an environment's image, and pushes it on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway_cli import images
from headway_cli.commands.common import FAILED, INTERRUPTED, Form, Output, note, reported_errors


def image(
    folder: Annotated[Path, typer.Argument(help="Folder with the environment's Dockerfile.")],
    tag: Annotated[
        str | None, typer.Option(help="Name of the image; default: localhost/headway/FOLDER:dev.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Sandbox image to build on, instead of the Dockerfile's BASE.")
    ] = None,
    push: Annotated[
        bool, typer.Option("--push", help="Push the image to the registry that --tag names.")
    ] = False,
    output: Output = Form.TEXT,
) -> None:
    """Build an environment's image with buildah or docker, and print its name."""
    with reported_errors():
        wanted = images.order(folder, tag, base, push=push)
        program = images.builder()
    try:
        images.build(program, wanted, note)
        reference = images.push(program, wanted.reference, note) if push else wanted.reference
    except images.ImageBuildError as error:
        note(f"headway: {error}; its output is above")
        if (base := images.base_of(wanted)) is not None:
            note(f"if {base} is not on this machine, write --base registry.example.com/headway/sandbox:1")
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
            "it is only on this machine; for a cluster write --push --tag "
            f"registry.example.com/team/{folder.resolve().name}:1"
        )
