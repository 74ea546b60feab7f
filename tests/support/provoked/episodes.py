"""Faults of the environment, its image and the agent, and of episodes and processes of a running job."""

from __future__ import annotations

from typing import Any

from provoked.provocation import HOST_IMAGE, ODD_MODULE, Provocation, merged

TURN_LIMIT_S = 10
"""Seconds that an episode may take if a tool hangs."""


def odd(name: str, changes: dict[str, Any] | None = None, *, trains: bool = False) -> Provocation:
    """A job with the environment `name` of `odd.py`, and these changes of its spec."""
    mount = {"name": ODD_MODULE, "mountPath": f"/environment/{ODD_MODULE}.py", "subPath": f"{ODD_MODULE}.py"}
    template = {
        "volumes": [{"name": ODD_MODULE, "configMap": {"name": ODD_MODULE}}],
        "containers": [{"name": "sandbox", "volumeMounts": [mount]}],
    }
    environment = {"entrypoint": f"{ODD_MODULE}:{name}", "sandbox": {"podTemplate": {"spec": template}}}
    return Provocation(merged(changes or {}, {"environment": environment}), trains=trains)


def small(role: str) -> Provocation:
    """A job whose processes of a role may use less memory than Python with its libraries needs."""
    memory = {"memory": "96Mi"}
    return Provocation({role: {"resources": {"requests": memory, "limits": memory}}}, trains=True)


TINY = {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}}
"""A volume in memory, which is full at once, since it is a file system of this size."""
ON_DISK = {"name": "cache", "emptyDir": {"sizeLimit": "64Ki"}}
"""A volume on the node's disk. The kubelet evicts a pod that writes more only at its next check."""
LONG_STEP = {"algorithm": {"batchSize": 128, "groupSize": 8}}
"""A step that takes minutes, so that the kubelet checks the volume before it ends."""
LONG_ENOUGH = {"schedule": {"maxSteps": 8}, "evaluation": {"everySteps": 0, "atStart": False}}
SOON_OVER = LONG_ENOUGH | {"rollout": {"timeoutSeconds": TURN_LIMIT_S}}

PROVOKED: dict[str, Provocation] = {
    "no-module": Provocation({"environment": {"entrypoint": "no_such_module:Desk"}}),
    "no-class": Provocation({"environment": {"entrypoint": "environment:ReturnDesk"}}),
    "no-environment": Provocation({"environment": {"entrypoint": "environment:case_ids"}}),
    "unknown-settings": Provocation({"environment": {"config": {"shop": "lamps"}}}),
    "reset-raises": odd("Unready"),
    "reward-raises": odd("Unjust"),
    "reward-no-number": odd("NotANumber"),
    "reward-out-of-range": Provocation({"reward": {"range": [5, 6]}}),
    "program-not-in-image": Provocation(
        {"agent": {"builtin": None, "sandboxed": {"command": ["desk-agent"]}}}
    ),
    "no-agent-there": Provocation(
        {"agent": {"builtin": None, "http": {"service": {"name": "no-such-agent", "port": 8080}}}}
    ),
    "no-image-name": Provocation({"environment": {"image": "Headway/Environment:1"}}),
    "no-registry": Provocation({"environment": {"image": "headway.invalid/no-such-environment:1"}}),
    "image-not-loaded": Provocation(
        {"environment": {"image": "localhost/headway/absent:dev", "imagePullPolicy": "Never"}}
    ),
    "image-without-server": Provocation({"environment": {"image": HOST_IMAGE}}),
    "tool-hangs": odd("Hanging", SOON_OVER, trains=True),
    "tool-hangs-at-times": odd("HangingAtTimes", SOON_OVER, trains=True),
    "reward-raises-after-a-call": odd("UnjustOnceCalled", LONG_ENOUGH, trains=True),
    "nothing-to-train": odd("Flat", LONG_ENOUGH, trains=True),
    "learner-out-of-memory": small("learner"),
    "server-out-of-memory": small("rollout"),
    "disk-full": Provocation({"learner": {"podTemplate": {"spec": {"volumes": [TINY]}}}}, trains=True),
    "volume-beyond-its-limit": Provocation(
        {"learner": {"podTemplate": {"spec": {"volumes": [ON_DISK]}}}} | LONG_STEP,
        trains=True,
    ),
    "out-of-time": Provocation({"activeDeadlineSeconds": 5}),
}
