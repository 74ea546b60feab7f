"""What the protocols of a turn have in common: a request that was read, and its answer for its client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from headway_coordinator.gateway.asks import Ask, Completion
from headway_coordinator.gateway.refusals import GatewayError


class Asked(Protocol):
    """A request for a turn, as one protocol has it."""

    @property
    def ask(self) -> Ask:
        """What is to be sampled."""

    @property
    def stream(self) -> bool:
        """Whether the answer comes as server-sent events."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of the request that are not applied."""

    def whole(self, found: Completion, trajectory_id: str) -> dict[str, Any]:
        """The answer as one document."""

    def events(self, found: Completion, trajectory_id: str) -> Iterator[bytes]:
        """The answer as events."""

    def failed(self, refusal: GatewayError) -> bytes:
        """The event that ends a stream that has begun."""


class Read(Protocol):
    """A protocol's reader."""

    def __call__(self, body: object, *, lenient: bool = False) -> Asked:
        """Check a request's JSON.

        Raises:
            Refusal: naming the field that must be changed.
        """
