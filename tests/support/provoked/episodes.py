"""Of what runs: environment, agent, and the processes of a job."""

from __future__ import annotations

from typing import Any

from provoked.provocation import HOST_IMAGE, ODD_MODULE, Provocation, Scene

CHECKPOINTED = 12
"""A step that no checkpoint is of."""


def odd(name: str, **more: Any) -> Provocation:
    """A job with this environment of `odd.py`, and these blocks of its spec."""
    mount = {"name": ODD_MODULE, "mountPath": f"/environment/{ODD_MODULE}.py", "subPath": f"{ODD_MODULE}.py"}
    template = {
        "volumes": [{"name": ODD_MODULE, "configMap": {"name": ODD_MODULE}}],
        "containers": [{"name": "sandbox", "volumeMounts": [mount]}],
    }
    environment = {"entrypoint": f"{ODD_MODULE}:{name}", "sandbox": {"podTemplate": {"spec": template}}}
    return Provocation({"environment": environment, **more})


def lose_the_checkpoint(scene: Scene, name: str) -> None:
    """Have the job, which is suspended, go on from a step whose checkpoint nobody wrote."""
    job = scene.job(name)
    folder = f"s3://headway/runs/{scene.namespace}/{name}/{job['metadata']['uid']}"
    scene.put(f"{folder}/latest.json", f'{{"step": {CHECKPOINTED}}}'.encode())
    scene.patch(name, {"spec": {"suspend": False}})


PROVOKED: dict[str, Provocation] = {
    "no-module": Provocation({"environment": {"entrypoint": "no_such_module:Desk"}}),
    "no-class": Provocation({"environment": {"entrypoint": "environment:ReturnDesk"}}),
    "no-environment": Provocation({"environment": {"entrypoint": "environment:case_ids"}}),
    "unknown-settings": Provocation({"environment": {"config": {"shop": "lamps"}}}),
    "reward-out-of-range": Provocation({"reward": {"range": [5, 6]}}),
    "program-not-in-image": Provocation(
        {"agent": {"builtin": None, "sandboxed": {"command": ["desk-agent"]}}}
    ),
    "no-agent-there": Provocation(
        {"agent": {"builtin": None, "http": {"service": {"name": "no-such-agent", "port": 8080}}}}
    ),
    "learner-out-of-memory": Provocation({"learner": {"resources": {"limits": {"memory": "96Mi"}}}}),
    "server-out-of-memory": Provocation({"rollout": {"resources": {"limits": {"memory": "96Mi"}}}}),
    "out-of-time": Provocation({"activeDeadlineSeconds": 5}),
    "nothing-to-train": odd("Flat", schedule={"maxSteps": 8}, evaluation={"everySteps": 8}),
    "reward-no-number": odd("NotANumber"),
    "reset-raises": odd("Unready"),
    "reward-raises": odd("Unjust"),
    "no-image-name": Provocation({"environment": {"image": "Headway/Environment:1"}}),
    "no-registry": Provocation({"environment": {"image": "headway.invalid/no-such-environment:1"}}),
    "image-not-loaded": Provocation(
        {"environment": {"image": "localhost/headway/absent:dev", "imagePullPolicy": "Never"}}
    ),
    "image-without-server": Provocation({"environment": {"image": HOST_IMAGE}}),
    "lost-checkpoint": Provocation({"suspend": True}, meanwhile=lose_the_checkpoint),
}
