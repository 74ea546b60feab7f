"""The servers of a judge's model: what they load, and where the coordinator finds them. Pure."""

from __future__ import annotations

from headway_api import names
from headway_api.config import EvalConfig, JobConfig, ServedModel
from headway_api.spec.judge import Judge, field_of
from headway_api.spec.rollout import Engine, ServersSpec


def urls(job: JobConfig | EvalConfig) -> dict[str, str]:
    """Base URL, up to /v1, of each judge whose model the job serves."""
    return {
        judge.name: f"http://{names.judge(job.stem, number)}.{job.namespace}.svc:{names.PORT_ENGINE}/v1"
        for number, judge in enumerate(job.spec.judges, 1)
        if judge.model is not None
    }


def served(job: JobConfig | EvalConfig, name: str) -> ServedModel:
    """What the servers of a judge load; its weights are never replaced."""
    [judge] = [each for each in job.spec.judges if each.name == name]
    assert judge.model is not None
    return ServedModel(
        base=judge.model.base,
        revision=judge.model.revision,
        dtype=judge.model.dtype,
        context_length=judge.model.context_length,
        lora_rank=None,
        adapters=1,
        updates=False,
        field=field_of(name, "model.base"),
        seed=job.spec.seed,
        rollout=_servers(judge),
        output=job.spec.output,
    )


def _servers(judge: Judge) -> ServersSpec:
    """The spec of a judge's servers, as for rollout servers."""
    assert judge.model is not None
    engine = Engine(tensor_parallel_size=judge.model.tensor_parallel_size, extra_args=judge.model.extra_args)
    return ServersSpec(
        replicas=judge.model.replicas,
        max_concurrency=judge.concurrency,
        engine=engine,
        resources=judge.model.resources,
    )
