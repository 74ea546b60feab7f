"""A job's parameters and tags in MLflow, as pure functions of the job.

Parameters have the names of SageMaker MTRL's hyperparameters, and also every field of the spec by its path.
Fields that may hold a secret are left out: pod templates, the environment's own config, passwords and queries
in addresses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway_api import names
from headway_api.config import JobConfig
from headway_api.objective import episode_tokens, expand
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.withheld import WITHHELD, without_secret

MAX_PARAMETERS = 400
"""The most parameters of a run. The rest is left out; MTRL's names come first."""
VALUE_LENGTH = 500
"""The most characters of a value, as in older MLflow servers."""


def parameters(spec: RLTrainingJobSpec) -> dict[str, str]:
    """MTRL's names first, then `spec.<path>` in camelCase as in the manifest, with defaults."""
    named = {name: value for name, value in _mtrl(spec).items() if value is not None}
    found = {**named, **dict(_flat("spec", spec.as_object()))}
    return {name: written(value) for name, value in list(found.items())[:MAX_PARAMETERS]}


def tags(job: JobConfig, kind: str) -> dict[str, str]:
    """Tags that name the job to which the run belongs."""
    labels = {"job": job.name, "namespace": job.namespace, "uid": job.uid, "kind": kind}
    return {f"{names.GROUP}/{name}": value for name, value in labels.items()}


def written(value: object) -> str:
    """A value as MLflow shows it: text unchanged, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return without_secret(text)[:VALUE_LENGTH]


def _mtrl(spec: RLTrainingJobSpec) -> dict[str, object]:
    """SageMaker MTRL's hyperparameters, as far as Headway has them."""
    algorithm, sampling, lora = spec.algorithm, spec.rollout.sampling, spec.model.effective_lora
    optimizer, measure = spec.optimizer, spec.evaluation
    objective = expand(algorithm, episode_tokens(spec))
    return {
        "global_batch_size": algorithm.batch_size,
        "group_size": algorithm.group_size,
        "advantage_method": algorithm.advantage.method,
        "loss_fn": algorithm.loss,
        "clip_low_threshold": objective.clip_low,
        "clip_high_threshold": objective.clip_high,
        "temperature": sampling.temperature,
        "sampling_top_p": sampling.top_p,
        "sampling_max_tokens": sampling.max_tokens,
        "val_sampling_params.temperature": measure.sampling.temperature,
        "val_sampling_params.top_p": measure.sampling.top_p,
        "val_sampling_params.max_tokens": spec.evaluation_max_tokens,
        "pass_k_values": ",".join(map(str, measure.pass_k)),
        "success_threshold": measure.success_threshold,
        "max_epochs": spec.schedule.max_epochs,
        "max_steps": spec.schedule.max_steps,
        "val_every": measure.every_steps,
        "lora_rank": lora.rank if lora else None,
        "lora_alpha": lora.alpha if lora else None,
        "learning_rate": optimizer.learning_rate,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "grad_clip_norm": optimizer.gradient_clip,
        "rollout_max_concurrency": spec.rollout.max_concurrency,
        "rollout_timeout": spec.rollout.timeout_seconds,
        "rollout_max_retries": spec.rollout.max_retries,
        "async_config.max_steps_off_policy": algorithm.max_steps_off_policy,
        "max_turns": spec.agent.turn_limit,
    }


def _flat(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Every leaf by its path. Items of a list have their index."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in WITHHELD:
                yield from _flat(f"{path}.{_key(name)}", item)
    elif isinstance(value, Sequence) and not isinstance(value, str) and any(map(_nested, value)):
        for index, item in enumerate(value):
            yield from _flat(f"{path}.{index}", item)
    else:
        yield path, value


def _nested(value: object) -> bool:
    return isinstance(value, Mapping | list)


def _key(name: Any) -> str:
    """A key that MLflow accepts."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", str(name))[:60]
