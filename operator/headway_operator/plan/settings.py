"""What the pods receive: the job as a file, and the keys with which its processes authenticate."""

from __future__ import annotations

import json

from headway_api import names
from headway_api.config import EvalConfig, JobConfig
from headway_operator.plan.context import Context, Mode, Wanted

SANDBOX_TEMPLATE = "sandbox-template.json"
"""File beside `job.json` that only the broker reads: the platform's PodTemplateSpec fragment for sandboxes,
with their default resources. The job's own podTemplate overrides it, and isolation overrides both."""


def manifests(context: Context, config: JobConfig | EvalConfig) -> list[Wanted]:
    """The job's ConfigMap and Secret. `config` is the form of the job that the job's processes read."""
    data = {
        "job.json": config.model_dump_json(by_alias=True, exclude_none=True),
        SANDBOX_TEMPLATE: json.dumps(sandbox_template(context), sort_keys=True),
    }
    secret = names.keys_secret(context.stem, context.uid)
    return [
        Wanted(context.object("v1", "ConfigMap", names.config_map(context.stem), data=data)),
        Wanted(context.object("v1", "Secret", secret, type="Opaque", immutable=True), Mode.SECRET),
    ]


def sandbox_template(context: Context) -> dict[str, object]:
    """The platform's settings for a sandbox pod: template, resources and pull secrets."""
    platform = context.platform
    return {
        "template": platform.role_templates.get(names.SANDBOX, {}),
        "resources": platform.resources_of(names.SANDBOX).as_object(),
        "imagePullSecrets": pull_secrets(context),
    }


def pull_secrets(context: Context) -> list[dict[str, str]]:
    """Pull secrets of the platform and the job, without duplicates."""
    found = [*context.platform.image_pull_secrets, *(item.name for item in context.spec.image_pull_secrets)]
    return [{"name": name} for name in dict.fromkeys(found)]
