"""The endpoint that samples a preflight's baseline instead of the job's own model.

`headway doctor --endpoint` writes the endpoint into a folder, which the coordinator reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headway_api import names
from headway_api.spec.candidate import CandidateEndpoint

FILE: Final = "endpoint.json"
OPTIONS: Final = {
    "url": "--endpoint",
    "model": "--model",
    "maxConcurrency": "--max-concurrency",
    "requestsPerMinute": "--requests-per-minute",
    "secretRef": "--token-env",
}
"""Setting of an endpoint -> option of `headway doctor`."""


@dataclass(frozen=True)
class BaselineEndpoint:
    """An endpoint, and the token for requests to it."""

    spec: CandidateEndpoint
    """The endpoint's settings, as for a candidate of an evaluation, but without a Secret."""
    token: str | None = field(default=None, repr=False)
    """Bearer token. None: requests have no token."""

    def write(self, folder: Path) -> None:
        """Write the endpoint into a new folder that only its owner may read."""
        folder.mkdir(mode=0o700, parents=True)
        (folder / FILE).write_text(self.spec.model_dump_json(by_alias=True, exclude_none=True))
        if self.token is not None:
            (folder / names.TOKEN_KEY).write_text(self.token)


def from_environ(environ: Mapping[str, str]) -> BaselineEndpoint | None:
    """The endpoint in the folder that `names.ENV_BASELINE_ENDPOINT` names; None if the variable is absent."""
    folder = environ.get(names.ENV_BASELINE_ENDPOINT)
    return None if folder is None else read(Path(folder))


def read(folder: Path) -> BaselineEndpoint:
    """The endpoint that `write` has written."""
    spec = CandidateEndpoint.model_validate_json((folder / FILE).read_text())
    token = folder / names.TOKEN_KEY
    return BaselineEndpoint(spec, token.read_text() if token.exists() else None)
