"""Chooses the renderer for the effort that a request asks for: how much the model should think.

Chat templates know two kinds of variables: a switch (`enable_thinking`, `thinking`) and a level
(`reasoning_effort`). If a template knows a variable, setting it changes the rendered prompt.
"""

from __future__ import annotations

from headway_coordinator.gateway.asks import UnknownEffortError
from headway_coordinator.trajectory.renderer import Renderer


class Efforts:
    """Renderers of one model, by effort."""

    def __init__(self, renderer: Renderer) -> None:
        self._usual = renderer
        self._known: dict[str, Renderer | None] = {}

    def of(self, effort: str | None) -> Renderer:
        """The renderer of a turn with this effort. None: the job's usual renderer.

        Raises:
            UnknownEffortError: the template does not know `effort`.
        """
        if effort is None:
            return self._usual
        if effort not in self._known:
            self._known[effort] = self._usual.thinking(effort)
        found = self._known[effort]
        if found is None:
            raise UnknownEffortError(
                f"the model's chat template writes the same prompt with {effort!r} as without"
            )
        return found

    def knows(self, effort: str) -> bool:
        """Whether the template renders a different prompt for this effort."""
        try:
            return self.of(effort) is not None
        except UnknownEffortError:
            return False
