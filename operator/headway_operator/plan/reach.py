"""Decides which addresses, Secrets and accounts a job may name. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from headway_api.bounds import shortened
from headway_api.document import Json
from headway_api.spec.judge import field_of as judge_field
from headway_operator import addresses
from headway_operator.plan.context import Context

SHOWN: Final = 200
NAMED_IN: Final = frozenset(
    {"secret", "secretRef", "secretKeyRef", "nodePublishSecretRef", "imagePullSecrets"}
)
"""Fields of a pod whose `name` is the name of a Secret."""


def refusals(context: Context) -> Iterator[str]:
    """Why the names in a job cannot be accepted: each message names the field and what to change."""
    for field, url in _urls(context):
        yield from _address(field, url, context)
    yield from _service(context)
    yield from _account(context)
    patterns = context.platform.policy.secret_names
    if patterns:
        for field, name in _secrets(context):
            if not any(fnmatchcase(name, pattern) for pattern in patterns):
                yield (
                    f"{field}: jobs may not name Secret {name} on this platform; name one of "
                    f"{', '.join(patterns)}, or have it added to policy.secretNames of the chart"
                )


def _urls(context: Context) -> Iterator[tuple[str, str]]:
    agent, output, tracking = context.spec.agent.http, context.spec.output, context.spec.tracking
    if output.endpoint_url is not None:
        yield "spec.output.endpointUrl", output.endpoint_url
    if tracking.mlflow is not None:
        yield "spec.tracking.mlflow.uri", tracking.mlflow.uri
    if tracking.otlp is not None:
        yield "spec.tracking.otlp.endpoint", tracking.otlp.endpoint
    if agent is not None and agent.url is not None:
        yield "spec.agent.http.url", agent.url
    if agent is not None and agent.callback_url is not None:
        yield "spec.agent.http.callbackUrl", agent.callback_url
    for candidate in getattr(context.spec, "candidates", ()):
        if candidate.endpoint is not None:
            yield f"spec.candidates[{candidate.name}].endpoint.url", candidate.endpoint.url
    for judge in context.spec.judges:
        if judge.endpoint is not None:
            yield judge_field(judge.name, "endpoint.url"), judge.endpoint.url


def _address(field: str, url: str, context: Context) -> Iterator[str]:
    policy = context.platform.policy
    found = addresses.read(url)
    if found is None:
        yield f"{field}: {shortened(url, SHOWN)} is not a URL; write http(s)://HOST[:PORT][/PATH] in ASCII"
        return
    listed = policy.agent_urls if field.endswith((".http.url", ".endpoint.url")) else ()
    matching = [pattern for pattern in listed if addresses.matches(pattern, found)]
    if any(not addresses.is_wild(pattern) for pattern in matching):
        return
    if (what := addresses.forbidden(found.host, policy.api_server)) is not None:
        yield (
            f"{field}: {found.host} is {what}, which jobs may not name; write the address of a Service or "
            "of a host of your own"
        )
    elif listed and not matching:
        yield (
            f"{field}: jobs may not name {found.scheme}://{found.host}:{found.port} on this platform; "
            f"write an address that begins with {', '.join(listed)}, or have it added to policy.agentUrls "
            "of the chart"
        )


def _service(context: Context) -> Iterator[str]:
    agent = context.spec.agent.http
    if agent is None or agent.service is None or context.namespace != "default":
        return
    if agent.service.name == "kubernetes":
        yield "spec.agent.http.service.name: kubernetes is the API server; name the Service of an agent"


def _account(context: Context) -> Iterator[str]:
    """Refuse an account that jobs may not use: a job gets its account's rights and its cloud identity."""
    name, patterns = context.spec.service_account_name, context.platform.policy.service_accounts
    if name is None or not patterns or any(fnmatchcase(name, pattern) for pattern in patterns):
        return
    yield (
        f"spec.serviceAccountName: jobs may not name {name} on this platform; name one of "
        f"{', '.join(patterns)}, leave it out, or have it added to policy.serviceAccounts of the chart"
    )


def _secrets(context: Context) -> Iterator[tuple[str, str]]:
    """Every Secret that a job names, with its field."""
    spec = context.spec
    output = spec.output
    if output.secret_ref is not None:
        yield "spec.output.secretRef.name", output.secret_ref.name
    for role in ("coordinator", "learner", "rollout"):
        ref = output.role_secret_refs and getattr(output.role_secret_refs, role)
        if ref:
            yield f"spec.output.roleSecretRefs.{role}.name", ref.name
    for at, item in enumerate(spec.image_pull_secrets):
        yield f"spec.imagePullSecrets[{at}].name", item.name
    for candidate in getattr(spec, "candidates", ()):
        if candidate.endpoint is not None and candidate.endpoint.secret_ref is not None:
            field = f"spec.candidates[{candidate.name}].endpoint.secretRef.name"
            yield field, candidate.endpoint.secret_ref.name
    for judge in spec.judges:
        if judge.secret_ref is not None:
            yield judge_field(judge.name, "secretRef.name"), judge.secret_ref.name
    for field, template in _templates(context):
        yield from _named(template.get("spec"), f"{field}.spec")


def _templates(context: Context) -> Iterator[tuple[str, Json]]:
    spec = context.spec
    found = {
        "spec.rollout.podTemplate": spec.rollout.pod_template,
        "spec.environment.sandbox.podTemplate": spec.environment.sandbox.pod_template,
        **{
            f"spec.suites[{suite.name}].sandbox.podTemplate": suite.sandbox.pod_template
            for suite in context.suites
        },
    }
    if (learner := getattr(spec, "learner", None)) is not None:
        found["spec.learner.podTemplate"] = learner.pod_template
    return ((field, template) for field, template in found.items() if template)


def _named(value: Any, field: str, key: str = "") -> Iterator[tuple[str, str]]:
    """The Secrets in a podTemplate, from every place where a pod may name one."""
    if isinstance(value, dict):
        for name in ("name", "secretName") if key in NAMED_IN else ("secretName",):
            if isinstance(value.get(name), str):
                yield f"{field}.{name}", value[name]
        for name, item in value.items():
            yield from _named(item, f"{field}.{name}", name)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _named(item, f"{field}[{at}]", key)
