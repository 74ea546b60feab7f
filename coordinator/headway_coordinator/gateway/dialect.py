"""The common interface of the protocols: a parsed request, and the answer in its client's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from headway_coordinator.gateway.asks import Ask, Completion
from headway_coordinator.gateway.refusals import GatewayError


class TurnRequest(Protocol):
    """A parsed request for a turn, which also writes the answer in its protocol's form."""

    @property
    def ask(self) -> Ask:
        """The request in the form that all protocols share."""

    @property
    def stream(self) -> bool:
        """Whether the answer comes as server-sent events."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of the request that are not applied."""

    def whole(self, found: Completion, trajectory_id: str) -> dict[str, Any]:
        """The answer as one JSON document."""

    def events(self, found: Completion, trajectory_id: str) -> Iterator[bytes]:
        """The answer as server-sent events."""

    def failed(self, refusal: GatewayError) -> bytes:
        """The event that ends a stream with an error."""


class Read(Protocol):
    """The function with which a protocol parses and checks a request's JSON."""

    def __call__(self, body: object, *, lenient: bool = False, large: bool = False) -> TurnRequest:
        """Check a request's JSON.

        Args:
            body: the parsed JSON.
            lenient: ignore fields that are not applied, instead of refusing the request.
            large: check the request in slices, so that other episodes can continue.

        Raises:
            GatewayError: names the field to change.
        """
