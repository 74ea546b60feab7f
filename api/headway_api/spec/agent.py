"""Who acts in an episode: the platform's own loop, the user's service, or a program in the sandbox."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule, not_yet
from headway_api.spec.types import Argument, Label, Uri, uri_scheme


class BuiltinAgent(SpecModel):
    """The platform's tool loop: sample a turn, run its tool calls in the sandbox, repeat."""

    max_turns: Annotated[int, Field(ge=1, le=1000)] = 16
    """Turns after which an episode is cut off and counted as Truncated. Start at one and a half times
    the turns a person needs; under a tenth of the episodes should reach it."""
    system_prompt: Annotated[str, Field(max_length=32768)] | None = None
    """System message put before the row's prompt. Absent: the environment's own, if it has one."""
    tool_call_parser: Literal["auto", "hermes"] = "auto"
    """How tool calls are read from the model's text. auto picks by the model's family and chat template;
    hermes reads JSON between <tool_call> tags (Qwen3 and many others), whatever the family writes, and the
    preflight fails where the model's tokenizer has no such tag."""


class AgentService(SpecModel):
    """A Service in the job's namespace."""

    name: Label
    """Name of the Service."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Port of the Service."""
    path: Annotated[str, Field(pattern=r"^/", max_length=256)] = "/"
    """Path the prompt is posted to."""


class HttpAgent(SpecModel):
    """An agent that runs as a service: it is sent each prompt and calls the platform for its turns."""

    validations = (
        Rule(
            "has(self.url) != has(self.service)",
            "spec.agent.http takes exactly one of url and service",
            lambda self: (self.url is None) != (self.service is None),
        ),
    )

    url: Annotated[Uri, uri_scheme("spec.agent.http.url", "http", "https")] | None = None
    """Address the prompt is posted to."""
    service: AgentService | None = None
    """Service the prompt is posted to."""


class SandboxedAgent(SpecModel):
    """An agent that is a program in the episode's sandbox."""

    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=32)]
    """Program and arguments. It finds an OpenAI-compatible endpoint in OPENAI_BASE_URL."""


class AgentSpec(SpecModel):
    """How an episode is acted out: one of builtin, http and sandboxed; none of them is builtin."""

    validations = (
        Rule(
            "[has(self.builtin), has(self.http), has(self.sandboxed)].filter(given, given).size() <= 1",
            "spec.agent takes one of builtin, http and sandboxed; remove the others",
            lambda self: [self.builtin, self.http, self.sandboxed].count(None) >= 2,
        ),
    )

    builtin: BuiltinAgent | None = None
    """The platform's own tool loop."""
    http: Annotated[
        HttpAgent | None, not_yet("spec.agent.http is not run by this version; use spec.agent.builtin")
    ] = None
    """An agent of your own, as a service. Not run yet."""
    sandboxed: Annotated[
        SandboxedAgent | None,
        not_yet("spec.agent.sandboxed is not run by this version; use spec.agent.builtin"),
    ] = None
    """An agent of your own, as a program in the sandbox. Not run yet."""

    @property
    def effective_builtin(self) -> BuiltinAgent:
        """The settings of the platform's loop, its defaults where none were given."""
        return self.builtin or BuiltinAgent()
