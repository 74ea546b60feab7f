"""The coordinator: a Job, since its one pod ends by itself, and a Service by which other pods find it."""

from __future__ import annotations

from headway_api import names
from headway_api.document import Json
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_operator.plan import failures, judges, pods
from headway_operator.plan.context import Context, Mode, Wanted


def manifests(context: Context) -> list[Wanted]:
    """Service and Job."""
    role = names.COORDINATOR
    service = {
        "selector": context.selector(role),
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in _ports(context).items()],
    }
    return [
        Wanted(context.object("v1", "Service", context.child(role), role, spec=service)),
        Wanted(context.object("batch/v1", "Job", context.child(role), role, spec=_job(context)), Mode.PIN),
    ]


def _job(context: Context) -> Json:
    return {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": context.spec.failure_policy.max_restarts,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": failures.pod_failure_policy(names.COORDINATOR, context.spec.failure_policy.rules),
        "template": pods.pod_template(context, _process(context)),
    }


def _ports(context: Context) -> dict[str, int]:
    ports = {"http": names.PORT_COORDINATOR}
    return {**ports, "gateway": names.PORT_GATEWAY} if context.opens_gateway else ports


def _process(context: Context) -> pods.Process:
    return pods.Process(
        role=names.COORDINATOR,
        module="headway_coordinator",
        image=context.platform.images.coordinator,
        ports=_ports(context),
        probes={
            "readinessProbe": pods.http_probe("/readyz", "http", period=2, failures=3),
            "livenessProbe": pods.http_probe("/healthz", "http", period=10, failures=18, timeout=10),
        },
        files_from_secret={**_endpoint_tokens(context), **_judge_tokens(context), **judges.keys(context)},
        files_from_config_map={
            names.PRICES_DIR: (context.spec.price_book or names.PRICES_NAME, names.PRICES_KEY)
        },
        api_token=True,
        store=True,
        costly_to_move=True,
        restart_policy="Never",
    )


def _endpoint_tokens(context: Context) -> dict[str, tuple[str, str]]:
    """Folders with the tokens of endpoints that are measured. A missing Secret does not delay the other
    candidates."""
    spec = context.spec
    if not isinstance(spec, RLEvalJobSpec):
        return {}
    return {
        f"{names.ENDPOINTS_DIR}/{candidate.name}": (candidate.endpoint.secret_ref.name, names.TOKEN_KEY)
        for candidate in spec.candidates
        if candidate.endpoint is not None and candidate.endpoint.secret_ref is not None
    }


def _judge_tokens(context: Context) -> dict[str, tuple[str, str]]:
    """Folders with the tokens of the judges."""
    return {
        f"{names.JUDGES_DIR}/{judge.name}": (judge.secret_ref.name, names.TOKEN_KEY)
        for judge in context.spec.judges
        if judge.secret_ref is not None
    }
