"""Keeps a task's scorers from asking the candidate that they grade.

Inspect's graders ask the model under test unless the task names another one. A suite's pod reaches only the
gateway, which serves only the candidate, under any name.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

GATEWAY = "OPENAI_BASE_URL"
"""The variable with the gateway's address."""
OTHER_GATEWAYS = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
"""Variables of an agent's process by which another provider would reach the gateway. A suite has no use for
them."""
AT_THE_GATEWAY = ("openai/", "openai-api/openai/")
"""Prefixes of a model's name with which its requests go to the gateway."""
GRADERS = ("inspect_ai/model_graded_fact", "inspect_ai/model_graded_qa")
"""Inspect's scorers that always ask a model."""
ROLE = "grader"
"""The role of the model that `GRADERS` ask, unless the task names another role."""


class CandidateGradesItselfError(Exception):
    """A scorer has asked the candidate that it grades."""


class Refusals:
    """Refuses requests of a task's scorers to the candidate. Requests of its solvers pass."""

    def __init__(self, task: Any) -> None:
        self.fault: str | None = None
        """Why the sample has no score, once a request was refused."""
        self._scorer: ContextVar[str | None] = ContextVar("scorer")
        self._running: list[str] = []
        task.scorer = [self._named(scorer) for scorer in task.scorer or []]

    def _named(self, scorer: Any) -> Any:
        """The scorer, wrapped so that its requests can be recognized."""
        from inspect_ai._util.registry import registry_info

        name = registry_info(scorer).name

        @functools.wraps(scorer)  # this copies Inspect's own attributes too
        async def score(state: Any, target: Any) -> Any:
            token = self._scorer.set(name)
            self._running.append(name)
            try:
                return await scorer(state, target)
            finally:
                self._running.remove(name)
                self._scorer.reset(token)

        return score

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this is open, no OpenAI client takes a scorer's request to the gateway."""
        from openai import AsyncOpenAI, OpenAI

        before = {client: client.request for client in (OpenAI, AsyncOpenAI)}
        solving = self._scorer.set(None)
        try:
            for client, request in before.items():
                setattr(client, "request", self._checked(request))  # noqa: B010  (types forbid it)
            yield
        finally:
            self._scorer.reset(solving)
            for client, request in before.items():
                setattr(client, "request", request)  # noqa: B010

    def _checked(self, request: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(request)
        def checked(client: Any, *given: Any, **named: Any) -> Any:
            # A new thread may have no context. Its request is a scorer's if a scorer runs.
            scorer = self._scorer.get(self._running[-1] if self._running else None)
            if scorer is not None and address(str(client.base_url)) == address(os.environ.get(GATEWAY, "")):
                self.fault = self.fault or fault(scorer)
                raise CandidateGradesItselfError(self.fault)
            return request(client, *given, **named)

        return checked


def address(url: str) -> str:
    """Host and port of a URL."""
    return urlsplit(url).netloc


def fault(scorer: str) -> str:
    """The message about a task whose scorer asks the candidate, with what to write instead."""
    return (
        f"the scorer {scorer} asks a model, which is the candidate itself; use scorers that ask none, or "
        "spec.judges in an environment of your own"
    )


def own_grader(task: Any) -> str | None:
    """The first scorer that always asks the candidate; None if only a run can show whether one does."""
    from inspect_ai._util.registry import registry_info, registry_params

    roles = getattr(task, "model_roles", None) or {}
    for scorer in task.scorer:
        name = registry_info(scorer).name
        if name in GRADERS and asks_the_candidate(registry_params(scorer), roles):
            return str(name)
    return None


def asks_the_candidate(of_scorer: Mapping[str, Any], roles: Mapping[str, Any]) -> bool:
    """Whether a grader's model is the candidate.

    Args:
        of_scorer: the arguments of one of `GRADERS`.
        roles: the task's models by role.
    """
    asked, role = of_scorer.get("model"), of_scorer.get("model_role", ROLE)
    if asked is None:
        asked = roles.get(getattr(role, "name", role))
    if asked is None:
        return True
    names = [str(each) for each in (asked if isinstance(asked, list) else [asked])]
    return any(name.startswith(AT_THE_GATEWAY) for name in names)
