"""Who acts in an episode: the platform's own loop, the user's service, or a program in the sandbox."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Argument, Label, Uri, uri_scheme
from headway_api.rules import Rule

ToolCallParser = Literal[
    "auto",
    "hermes",
    "llama",
    "harmony",
    "qwen-coder",
    "glm",
    "hy3",
    "mistral",
    "mistral-tekken",
    "deepseek-v3",
    "deepseek-v3.1",
    "deepseek-v3.2",
    "kimi",
    "minimax",
    "seed-oss",
    "gemma3",
    "gemma4",
    "granite",
    "phi4",
    "command",
    "nemotron",
    "lfm2",
    "llama4",
    "pythonic",
]


class BuiltinAgent(SpecModel):
    """The platform's tool loop: sample a turn, run its tool calls in the sandbox, repeat."""

    max_turns: Annotated[int, Field(ge=1, le=1000)] = 16
    """Turns after which an episode is cut off and counted as Truncated. Start at one and a half times the
    turns that a person needs. Under a tenth of the episodes should reach this limit."""
    system_prompt: Annotated[str, Field(max_length=32768)] | None = None
    """System message put before the row's prompt. Absent: the environment's own, if it has one."""
    tool_call_parser: ToolCallParser = "auto"
    """How the gateway reads tool calls from the model's text. auto chooses the reader that parses what the
    model's own chat template writes; docs/models.md has one line for each family. hermes reads JSON between
    <tool_call> tags; the preflight fails if the tokenizer has no such tag. llama reads a turn that is one
    JSON object with name and parameters. pythonic reads a turn that is a list of calls in Python. Each other
    reader is named after the model family whose format it reads."""


class AgentService(SpecModel):
    """A Service in the job's namespace."""

    name: Label
    """Name of the Service."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Port of the Service."""
    path: Annotated[str, Field(pattern=r"^/", max_length=256)] = "/"
    """Path that the job posts the prompt to."""


class HttpAgent(SpecModel):
    """An agent that runs as a service. The job sends each prompt to the agent. The agent asks the gateway for
    its turns, by the protocol of SageMaker's multi-turn RL."""

    validations = (
        Rule(
            "has(self.url) != has(self.service)",
            "spec.agent.http takes exactly one of url and service",
            lambda self: (self.url is None) != (self.service is None),
        ),
    )

    url: Annotated[Uri, uri_scheme("spec.agent.http.url", "http", "https")] | None = None
    """Address that the job posts the prompt to."""
    service: AgentService | None = None
    """Service that the job posts the prompt to."""
    callback_url: (
        Annotated[
            Uri,
            uri_scheme("spec.agent.http.callbackUrl", "http", "https"),
            Rule(
                "!self.contains('?') && !self.contains('#')",
                "spec.agent.http.callbackUrl must have no query and no fragment: paths are added to it",
                lambda value: value is None or not ("?" in value or "#" in value),
            ),
        ]
        | None
    ) = None
    """Base URL by which an agent outside the cluster reaches the coordinator's gateway. An ingress or load
    balancer forwards all paths below it to port 8110 of the Service <job>-coordinator. Absent: that Service
    itself."""
    idle_seconds: Annotated[int, Field(ge=5, le=86400)] = 120
    """Maximum seconds that an agent may work on a prompt without a call to the gateway. After that the
    episode is an InfraError, and is retried. A job thus survives a redeploy of the agent. Set more than the
    longest time that the agent works between two turns."""
    reports_reward: bool = True
    """Whether the agent sends a reward after its episode, as agents made for SageMaker do. true: the episode
    waits for this reward, and the environment judges with it. false: the environment judges alone."""


class SandboxedAgent(SpecModel):
    """An agent that is a program in the episode's sandbox, from the environment's image. This sandbox reaches
    the coordinator's gateway and nothing else."""

    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=32)]
    """Program and arguments, run once an episode. The program finds an OpenAI-compatible endpoint in
    OPENAI_BASE_URL and OPENAI_API_KEY, and its episode as JSON in the file that HEADWAY_EPISODE_FILE names.
    It may write to HOME and TMPDIR. Exit status 0 ends the episode. After any other status the episode is an
    AgentError, or an InfraError if the model has not taken a turn."""


class AgentSpec(SpecModel):
    """Who acts in an episode: one of builtin, http and sandboxed. Absent: builtin."""

    validations = (
        Rule(
            "[has(self.builtin), has(self.http), has(self.sandboxed)].filter(given, given).size() <= 1",
            "spec.agent takes one of builtin, http and sandboxed; remove the others",
            lambda self: [self.builtin, self.http, self.sandboxed].count(None) >= 2,
        ),
    )

    builtin: BuiltinAgent | None = None
    """The platform's own tool loop."""
    http: HttpAgent | None = None
    """An agent of your own, as a service."""
    sandboxed: SandboxedAgent | None = None
    """An agent of your own, as a program in the sandbox."""
    lenient: bool = False
    """What the gateway does with a field of an agent's request that the gateway cannot apply. Examples are
    `n`, `logit_bias`, or a `reasoning_effort` that the chat template does not know. false: it refuses the
    request with 400 and names the field. true: it ignores the field, and the episode's record counts it in
    `ignored`. With true, the gateway also ignores `response_format`: the answer need not follow the schema,
    and its tokens are trained."""

    @property
    def effective_builtin(self) -> BuiltinAgent:
        """The settings of the platform's loop, or its defaults if the spec gives none."""
        return self.builtin or BuiltinAgent()

    @property
    def is_builtin(self) -> bool:
        """Whether the platform's own loop acts. No agent then requests turns at the gateway's port."""
        return self.http is None and self.sandboxed is None

    @property
    def field(self) -> str | None:
        """Path of the agent's field, for messages; None for the platform's own loop."""
        if self.http is not None:
            return "spec.agent.http"
        return "spec.agent.sandboxed.command" if self.sandboxed is not None else None

    @property
    def turn_limit(self) -> int | None:
        """Maximum turns of an episode; None for an agent whose own loop decides."""
        return self.effective_builtin.max_turns if self.is_builtin else None

    @property
    def planned_turns(self) -> int:
        """Turns that the context must have room for: maxTurns of the platform's loop, or 1 for an agent with
        its own loop."""
        return self.effective_builtin.max_turns if self.is_builtin else 1
