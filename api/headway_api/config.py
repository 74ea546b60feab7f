"""What the operator hands to every process of a job: identity and the spec as the API server holds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from headway_api import names
from headway_api.spec.training import RLTrainingJobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping


class JobConfig(BaseModel):
    """Content of `job.json`; everything else a process needs is a function of it (`headway_api.names`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    namespace: str
    uid: str
    spec: RLTrainingJobSpec

    @property
    def coordinator_url(self) -> str:
        """Base URL of the learner API."""
        host = names.service_host(self.name, names.COORDINATOR, self.namespace)
        return f"http://{host}:{names.PORT_COORDINATOR}"

    @property
    def broker_url(self) -> str:
        """Base URL of the sandbox broker."""
        return f"http://{names.service_host(self.name, names.BROKER, self.namespace)}:{names.PORT_BROKER}"

    @property
    def rollout_host(self) -> str:
        """Headless service whose addresses are the rollout servers."""
        return names.service_host(self.name, names.ROLLOUT, self.namespace)


def load(environ: Mapping[str, str]) -> JobConfig:
    """Read the mounted configuration; the path may be overridden by `HEADWAY_CONFIG`."""
    path = Path(environ.get(names.ENV_CONFIG, names.CONFIG_FILE))
    return JobConfig.model_validate_json(path.read_text())


def load_token(environ: Mapping[str, str]) -> str:
    """Read the job's shared token."""
    return Path(environ.get(names.ENV_TOKEN_FILE, names.TOKEN_FILE)).read_text().strip()
