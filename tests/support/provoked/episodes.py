"""Of the environment and its image."""

from __future__ import annotations

from provoked.provocation import HOST_IMAGE, Provocation

PROVOKED: dict[str, Provocation] = {
    "no-module": Provocation({"environment": {"entrypoint": "no_such_module:Desk"}}),
    "no-class": Provocation({"environment": {"entrypoint": "environment:ReturnDesk"}}),
    "reward-out-of-range": Provocation({"reward": {"range": [5, 6]}}),
    "no-image-name": Provocation({"environment": {"image": "Headway/Environment:1"}}),
    "no-registry": Provocation({"environment": {"image": "headway.invalid/no-such-environment:1"}}),
    "image-without-server": Provocation({"environment": {"image": HOST_IMAGE}}),
}
