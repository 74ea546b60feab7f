"""Of the environment, its image and the agent."""

from __future__ import annotations

from provoked.provocation import HOST_IMAGE, ODD_MODULE, Provocation


def odd(name: str) -> Provocation:
    """A job with this environment of `odd.py`."""
    mount = {"name": ODD_MODULE, "mountPath": f"/environment/{ODD_MODULE}.py", "subPath": f"{ODD_MODULE}.py"}
    template = {
        "volumes": [{"name": ODD_MODULE, "configMap": {"name": ODD_MODULE}}],
        "containers": [{"name": "sandbox", "volumeMounts": [mount]}],
    }
    environment = {"entrypoint": f"{ODD_MODULE}:{name}", "sandbox": {"podTemplate": {"spec": template}}}
    return Provocation({"environment": environment})


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
    "out-of-time": Provocation({"activeDeadlineSeconds": 5}),
}
