"""Makes the clients of a job's judges from its spec."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

from headway_api import judge_servers, names
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig, JobConfig
from headway_api.keys import Key
from headway_api.model_names import BASE_MODEL
from headway_api.spec.judge import Judge as JudgeSpec
from headway_api.spec.judge import JudgeEndpoint
from headway_api.store import Store
from headway_coordinator.endpoint.caller import ModelEndpoint
from headway_coordinator.endpoint.token import InvalidTokenError, read_token
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.judge import Judge
from headway_coordinator.judges.kept import Kept


def of_job(job: JobConfig | EvalConfig, http: aiohttp.ClientSession, store: Store, layout: Layout) -> Judges:
    """The judges of a job in its pods, including those that it serves itself. Nothing is sent yet."""
    return connected(job.spec.judges, http, store, layout, served=judge_servers.urls(job))


def connected(
    specs: Sequence[JudgeSpec],
    http: aiohttp.ClientSession,
    store: Store,
    layout: Layout,
    folder: Path | None = None,
    served: Mapping[str, str] | None = None,
) -> Judges:
    """The judges of a job. Nothing is sent yet.

    Args:
        http: a session without cookies.
        folder: has each judge's token in a folder of the judge's name; by default the folder in `ENV_JUDGES`.
        served: base URL of each judge whose model the job serves.
    """
    folder = folder or Path(os.environ.get(names.ENV_JUDGES, names.JUDGES_DIR))
    kept = Kept(store, layout)
    return Judges(
        {
            spec.name: Judge(http, spec, _place(spec, served or {}), token_of(spec, folder), kept)
            for spec in specs
        }
    )


def _place(spec: JudgeSpec, served: Mapping[str, str]) -> ModelEndpoint:
    return spec.endpoint or JudgeEndpoint(url=served[spec.name], model=BASE_MODEL)


def token_of(spec: JudgeSpec, folder: Path) -> Callable[[], str | None]:
    """A function that reads a judge's token. It is called at each question, so a corrected Secret applies."""

    def read() -> str | None:
        if spec.secret_ref is None and spec.model is None:
            return None
        try:
            return read_token(folder / spec.name)
        except InvalidTokenError as wrong:
            if spec.secret_ref is None:
                raise InvalidTokenError(f"the job's key {Key.COORDINATOR_TO_JUDGE} {wrong}") from wrong
            raise InvalidTokenError(
                f"the key `token` of the Secret {spec.secret_ref.name} {wrong}"
            ) from wrong

    return read
