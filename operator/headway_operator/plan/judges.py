"""The servers of judges' models: rollout servers with their own model and key. Only the coordinator reaches
them. Pure.

They start when the coordinator waits for a judge. By then, the checks that need no accelerator have ended.
The servers stay as long as the job has pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headway_api import names
from headway_api.document import Json
from headway_api.keys import Key
from headway_api.spec.judge import Judge, JudgeModel, field_of
from headway_operator.plan import pods, rollout
from headway_operator.plan.context import Context, Mode, Wanted
from headway_operator.plan.health import RoleHealth, role_health, together
from headway_operator.plan.observed import Observed


def needed(context: Context, observed: Observed) -> bool:
    """Whether the servers are needed before the preflight ends."""
    if not context.serves_judges:
        return False
    found = context.job.status.preflight
    waits = found.waits_for if found is not None else None
    awaited = waits is not None and waits.name in {
        names.check_of_judge(judge.name) for _, judge, _ in _served(context)
    }
    return awaited or observed.workload(names.JUDGE) is not None


def manifests(context: Context) -> list[Wanted]:
    """Service and Deployment of each judge whose model the job serves."""
    return [
        made
        for number, judge, model in _served(context)
        for made in _manifests(context, names.judge(context.stem, number), judge, model)
    ]


def roles(context: Context, observed: Observed, restarts: int) -> list[RoleHealth]:
    """Health of all judges' servers as one role; `restarts` is the number of restarts so far."""
    found = [
        replace(
            role_health(observed.of_judge(judge.name), names.JUDGE, model.replicas, restarts),
            field=field_of(judge.name, "model"),
        )
        for _, judge, model in _served(context)
    ]
    return [together(found)] if found else []


def keys(context: Context) -> dict[str, tuple[str, str]]:
    """Folders in the coordinator's pod with the keys that the judges' servers require."""
    secret = names.keys_secret(context.stem, context.uid)
    return {
        f"{names.JUDGES_DIR}/{judge.name}": (secret, Key.COORDINATOR_TO_JUDGE.value)
        for _, judge, _ in _served(context)
    }


def _served(context: Context) -> Iterator[tuple[int, Judge, JudgeModel]]:
    """The judges whose model the job serves, each with its number from 1."""
    for number, judge in enumerate(context.spec.judges, 1):
        if judge.model is not None:
            yield number, judge, judge.model


def _manifests(context: Context, name: str, judge: Judge, model: JudgeModel) -> list[Wanted]:
    labels = {names.LABEL_JUDGE: judge.name}
    selector = context.selector(names.JUDGE) | labels
    service: Json = {
        "selector": selector,
        "ports": [{"name": "engine", "port": names.PORT_ENGINE, "targetPort": "engine"}],
    }
    deployment: Json = {
        "replicas": model.replicas,
        "strategy": rollout.REPLACED,
        "selector": {"matchLabels": selector},
        "template": pods.pod_template(context, _process(context, judge, model)),
    }
    made = [
        Wanted(context.object("v1", "Service", name, names.JUDGE, spec=service)),
        Wanted(context.object("apps/v1", "Deployment", name, names.JUDGE, spec=deployment), Mode.PIN),
    ]
    for item in made:
        item.body["metadata"]["labels"] |= labels
    return made


def _process(context: Context, judge: Judge, model: JudgeModel) -> pods.Process:
    return replace(
        rollout.process(context),
        labels={names.LABEL_COMPONENT: names.JUDGE, names.LABEL_JUDGE: judge.name},
        env={names.ENV_JUDGE: judge.name},
        holds_keys_of=names.JUDGE,
        resources=model.resources,
        accelerators=model.tensor_parallel_size,
    )
