"""The common interface of the protocols: a request that was read, and the answer for its client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from headway_coordinator.gateway.asks import Ask, Completion
from headway_coordinator.gateway.refusals import GatewayError


class TurnRequest(Protocol):
    """A request for a turn, as one protocol reads it."""

    @property
    def ask(self) -> Ask:
        """What to sample."""

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
        """The event that ends a stream with an error."""


class Read(Protocol):
    """A protocol's reader."""

    def __call__(self, body: object, *, lenient: bool = False, large: bool = False) -> TurnRequest:
        """Check a request's JSON. `large`: in slices, so that other episodes go on.

        Raises:
            GatewayError: names the field to change.
        """
