"""Describes the gateway's routes, with their requests and answers, as an OpenAPI 3.1 document. Pure.

Schemas of requests are generated from the models that parse the requests. Answers have models only for this
document, and tests compare the answers of a running gateway with them.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, JsonValue, TypeAdapter

from headway_api import bounds
from headway_api.sandbox_api import ToolReply
from headway_coordinator.gateway import completions, messages, openai, responses
from headway_coordinator.gateway.answer_models import Message, Response, ResponseModel, TokenCount
from headway_coordinator.gateway.completions import CompletionBody
from headway_coordinator.gateway.messages import CountBody, MessagesBody
from headway_coordinator.gateway.openai import MODEL, Body
from headway_coordinator.gateway.responses import ResponsesBody
from headway_coordinator.gateway.rollouts import Status

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
PLAIN: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string"}},
}
NAMED: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
"""Schemas of server-sent events: `PLAIN` without a name, `NAMED` with one."""
SCHEMAS: Final = "#/components/schemas/{model}"


class FunctionCall(ResponseModel):
    """The name of the called tool, and the arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(ResponseModel):
    """A call of a tool by the model."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(ResponseModel):
    """The assistant message of the answer."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)


class Logprob(ResponseModel):
    """One sampled token."""

    token: str
    logprob: float = Field(le=1e-3)
    bytes: list[int]
    top_logprobs: list[JsonValue] = Field(max_length=0)


class Logprobs(ResponseModel):
    """The sampled tokens of the turn, including those of its calls and its closing token."""

    content: list[Logprob] = Field(min_length=1)
    refusal: None


class Choice(ResponseModel):
    """The only choice of a chat completion."""

    index: Literal[0]
    message: AssistantMessage
    finish_reason: Literal["stop", "tool_calls", "length", "content_filter"]
    stop_reason: str | None
    """The string of `stop` that ended the turn."""
    logprobs: Logprobs | None


class TextLogprobs(ResponseModel):
    """The sampled tokens, including the token that ends the text."""

    tokens: list[str] = Field(min_length=1)
    token_logprobs: list[float]
    top_logprobs: None
    text_offset: list[int]


class TextChoice(ResponseModel):
    """The only choice of a completion."""

    index: Literal[0]
    text: str
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None
    logprobs: TextLogprobs | None


class PromptDetails(ResponseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int = Field(ge=0)


class Usage(ResponseModel):
    """The token counts of the turn."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptDetails


class ChatCompletion(ResponseModel):
    """The answer to a request for a chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    """`policy-` followed by the version of the weights that sampled the turn."""
    choices: list[Choice] = Field(min_length=1, max_length=1)
    usage: Usage


class TextCompletion(ResponseModel):
    """The answer to a request for a completion: the continuation of a text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice] = Field(min_length=1, max_length=1)
    usage: Usage


class Model(ResponseModel):
    """The model that is trained."""

    id: Literal["default"]
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None = Field(None, ge=1)
    """The most tokens that a conversation may have; absent if unknown."""


class Models(ResponseModel):
    """The list of models, which has one entry."""

    object: Literal["list"]
    data: list[Model]


class Tools(ResponseModel):
    """The environment's tools, in OpenAI's form."""

    tools: list[dict[str, JsonValue]]


class RolloutStatus(ResponseModel):
    """The current status of the rollout."""

    Status: Status


class ErrorDetail(ResponseModel):
    """What is wrong, and with which field."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str


class Error(ResponseModel):
    """An answer that is not a success."""

    type: Literal["error"]
    error: ErrorDetail
    message: str


class _Call(BaseModel):
    """The fields that all of MTRL's own calls share."""

    JobArn: str = Field("", max_length=bounds.CALL)
    TrajectoryId: str = Field("", max_length=bounds.CALL)
    ClientToken: str | int | None = None
    """An idempotency token. A call that repeats the token of an earlier call has no further effect."""


class CompleteRollout(_Call):
    """The agent's report that it is done, or gave up."""

    Status: str = Field(pattern="^([Rr][Ee][Aa][Dd][Yy]|[Ff][Aa][Ii][Ll][Ee][Dd])$")
    ErrorMessage: str | None = None


class UpdateReward(_Call):
    """The agent's own reward: one number, or one for each turn."""

    Rewards: list[float] = Field(min_length=1)
    Metrics: dict[str, float] | None = Field(None, max_length=bounds.METRICS)


ANSWERS: Final = (
    ChatCompletion,
    TextCompletion,
    Message,
    Response,
    TokenCount,
    Model,
    Models,
    Tools,
    ToolReply,
    RolloutStatus,
    Error,
)
REQUESTS: Final = (
    Body,
    CompletionBody,
    MessagesBody,
    CountBody,
    ResponsesBody,
    CompleteRollout,
    UpdateReward,
)
ARGUMENTS: Final = {"type": "object", "additionalProperties": True}


@cache
def document() -> bytes:
    """The document as JSON. The bytes are always the same."""
    return json.dumps(_document(), sort_keys=True).encode()


def _document() -> dict[str, Any]:
    openai_routes = {
        "/chat/completions": _post("A turn of the model", "Body", "ChatCompletion", streams=PLAIN),
        "/completions": _post("The next words of a text", "CompletionBody", "TextCompletion", streams=PLAIN),
        "/responses": _post("A turn, as Responses", "ResponsesBody", "Response", streams=NAMED),
        "/models": _get("The model", "Models"),
        "/models/{id}": _get("The model, whatever name it is asked for by", "Model") | _named("id"),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway's gateway", "version": "1"},
        "servers": [
            {
                "url": "/e/{token}",
                "description": "The endpoint that came with an episode.",
                "variables": {"token": {"default": "TOKEN"}},
            },
            {"url": "/", "description": "With the token in a header."},
        ],
        "security": [{}, {"trajectory": []}, {"bearer": []}, {"key": []}],
        "paths": {
            **openai_routes,
            **{f"/v1{path}": route for path, route in openai_routes.items()},
            "/v1/messages": _post(
                "A turn, as Anthropic's Messages", "MessagesBody", "Message", streams=NAMED
            ),
            "/v1/messages/count_tokens": _post("Tokens of a prompt", "CountBody", "TokenCount"),
            "/v1/tools": _get("The environment's tools", "Tools"),
            "/v1/tools/{name}": _post("A tool, carried out in the sandbox", None, "ToolReply")
            | _named("name"),
            "/complete-rollout": _post("The end of the agent's work", "CompleteRollout", "RolloutStatus"),
            "/update-reward": _post("The agent's own reward", "UpdateReward", "RolloutStatus"),
        },
        "components": {"schemas": _schemas(), "securitySchemes": _security()},
    }


def _security() -> dict[str, Any]:
    """The headers that may have the episode's token, if it is not in the URL."""
    trajectory = {"type": "apiKey", "in": "header", "name": "X-Amzn-SageMaker-Trajectory-Id"}
    key = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    return {"trajectory": trajectory, "bearer": {"type": "http", "scheme": "bearer"}, "key": key}


def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mode, models in (("serialization", ANSWERS), ("validation", REQUESTS)):
        for model in models:
            schema = TypeAdapter(model).json_schema(mode=mode, ref_template=SCHEMAS)  # type: ignore[arg-type]
            found |= schema.pop("$defs", {})
            found[model.__name__] = schema
    found["Body"]["properties"] |= {
        name: {"enum": [*values]} for name, values in openai.WITHOUT_EFFECT.items()
    }
    tables = {
        "CompletionBody": completions.WITHOUT_EFFECT,
        "MessagesBody": messages.WITHOUT_EFFECT,
        "CountBody": messages.WITHOUT_EFFECT,
        "ResponsesBody": responses.WITHOUT_EFFECT,
    }
    for name, table in tables.items():
        found[name]["properties"] |= {one: {"enum": [*values]} for one, values in table.items()}
    for name in ("Body", *tables):
        found[name]["properties"]["model"]["description"] = f"Any name means {MODEL}."
    return found


def _named(name: str) -> dict[str, Any]:
    """The declaration of a path parameter that may be any text."""
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]}


def _get(summary: str, answer: str) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": _responses(answer)}}


def _post(
    summary: str, request: str | None, answer: str, *, streams: dict[str, Any] | None = None
) -> dict[str, Any]:
    schema = ARGUMENTS if request is None else _ref(request)
    body = {"required": True, "content": {JSON: {"schema": schema}}}
    return {"post": {"summary": summary, "requestBody": body, "responses": _responses(answer, streams)}}


def _responses(answer: str, streams: dict[str, Any] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": _ref(answer)}}
    if streams is not None:
        content[EVENTS] = {"schema": streams}
    error = {"description": "What is wrong, and what to do.", "content": {JSON: {"schema": _ref("Error")}}}
    return {"200": {"description": "Done.", "content": content}, "4XX": error, "5XX": error}


def _ref(model: str) -> dict[str, str]:
    return {"$ref": SCHEMAS.format(model=model)}
