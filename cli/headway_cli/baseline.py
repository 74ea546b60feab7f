"""Reads the options that name an endpoint for the baseline episodes of `headway doctor`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from headway_api import mistake_words, names
from headway_api.baseline_endpoint import OPTIONS, BaselineEndpoint
from headway_api.spec.candidate import CandidateEndpoint
from headway_cli.local.manifest import ManifestError

FOLDER: Final = "baseline-endpoint"


@dataclass(frozen=True)
class Options:
    """The options of `headway doctor` that describe an endpoint; None if an option was not written."""

    endpoint: str | None
    model: str | None
    token_env: str | None
    max_concurrency: int | None
    requests_per_minute: int | None


def chosen(options: Options, environ: Mapping[str, str]) -> BaselineEndpoint | None:
    """The endpoint; None if the job's own model plays.

    Raises:
        ManifestError: an option is missing, wrong, or needs another option.
    """
    given = {
        "url": options.endpoint,
        "model": options.model,
        "secretRef": options.token_env,
        "maxConcurrency": options.max_concurrency,
        "requestsPerMinute": options.requests_per_minute,
    }
    if options.endpoint is None:
        if alone := [name for name, value in given.items() if value is not None]:
            raise ManifestError(f"{OPTIONS[alone[0]]} needs an endpoint: add --endpoint URL")
        return None
    if options.model is None:
        raise ManifestError("--endpoint needs the name of a model there: add --model NAME")
    wanted = {key: value for key, value in given.items() if value is not None and key != "secretRef"}
    try:
        spec = CandidateEndpoint.model_validate(wanted)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "url"
        raise ManifestError(f"{OPTIONS[field]} {given[field]}: {mistake_words.remedy(first)}") from error
    return BaselineEndpoint(spec, _token(options.token_env, environ))


def _token(variable: str | None, environ: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    token = environ.get(variable, "").strip()
    if not (token and token.isascii() and token.isprintable()):
        what = "holds characters that no header can" if token else "is not set or empty"
        raise ManifestError(f"--token-env {variable}: the variable {what}; write the endpoint's token there")
    return token


@contextmanager
def written(endpoint: BaselineEndpoint | None, job: Path) -> Iterator[dict[str, str]]:
    """Write the endpoint into the job's folder. Yield the environment variables that tell the coordinator.

    The endpoint's token is on the disk only during the block.

    Args:
        endpoint: None if the job's own model plays: nothing is written.
        job: the job's folder.
    """
    if endpoint is None:
        yield {}
        return
    folder = job.resolve() / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    try:
        endpoint.write(folder)
        yield {names.ENV_BASELINE_ENDPOINT: str(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
