"""Backends of the gateway that sample on the job's own rollout servers."""

from __future__ import annotations

from headway_coordinator.gateway.core import Engine, Gateway
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.preflight import calls
from headway_coordinator.trajectory.renderer import Renderer


def of_servers(
    renderer: Renderer, engine: Engine, context_length: int, timeout: float, places: TurnLimiter
) -> Backend:
    """A backend that samples on rollout servers. It refuses tools if the model's tool calls cannot be read.

    Args:
        renderer: renders the model's conversations and reads its turns.
        engine: samples tokens.
        context_length: tokens that a conversation may have.
        timeout: the longest that a turn may take, in seconds.
        places: bounds the turns in flight.
    """
    gateway = Gateway(renderer, engine, context_length, timeout)
    return Backend(gateway, places, context_length, calls.unread(renderer))
