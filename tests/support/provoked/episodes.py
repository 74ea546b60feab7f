"""Of the environment and its image."""

from __future__ import annotations

from provoked.provocation import Provocation

PROVOKED: dict[str, Provocation] = {
    "no-module": Provocation({"environment": {"entrypoint": "no_such_module:Desk"}}),
    "no-class": Provocation({"environment": {"entrypoint": "environment:ReturnDesk"}}),
    "no-image-name": Provocation({"environment": {"image": "Headway/Environment:1"}}),
    "no-registry": Provocation({"environment": {"image": "headway.invalid/no-such-environment:1"}}),
}
