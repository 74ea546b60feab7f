"""Who asks an endpoint: how messages name it, and where a person changes its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway_api.baseline_endpoint import OPTIONS
from headway_api.spec.candidate import CandidateEndpoint


class Owner(Protocol):
    """Who asks an endpoint."""

    @property
    def shown(self) -> str:
        """How messages and log lines name the owner."""

    def field(self, setting: str) -> str:
        """Where a person changes a setting: `url`, `model`, `requestsPerMinute`, `secretRef`."""

    def other(self, setting: str) -> str:
        """How a sentence names a second setting, after `field` named the first."""

    def token(self, spec: CandidateEndpoint) -> str:
        """What to do if the endpoint refuses the token."""


@dataclass(frozen=True)
class OfCandidate:
    """A candidate of an evaluation."""

    name: str

    @property
    def shown(self) -> str:
        return f"candidate {self.name}"

    def field(self, setting: str) -> str:
        return f"spec.candidates[{self.name}].endpoint.{setting}"

    def other(self, setting: str) -> str:
        return f"{setting} beside it"

    def token(self, spec: CandidateEndpoint) -> str:
        where = self.field("secretRef")
        if spec.secret_ref is None:
            return f"name a Secret in {where} whose key `token` is a token that the endpoint accepts"
        return f"correct the key `token` of Secret {spec.secret_ref.name}, or name another Secret in {where}"


@dataclass(frozen=True)
class OfBaseline:
    """The baseline of `headway doctor`."""

    @property
    def shown(self) -> str:
        return "the baseline's endpoint"

    def field(self, setting: str) -> str:
        return OPTIONS[setting]

    def other(self, setting: str) -> str:
        return OPTIONS[setting]

    def token(self, spec: CandidateEndpoint) -> str:
        return f"set {OPTIONS['secretRef']} to an environment variable with a token that the endpoint accepts"
