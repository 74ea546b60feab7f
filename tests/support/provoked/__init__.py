"""Provocations on a cluster: how to cause each fault of headway_analysis.faults, by the fault's name."""

from provoked import episodes, inputs, manifests, platform
from provoked.provocation import Provocation

PROVOKED: dict[str, Provocation] = (
    manifests.PROVOKED | inputs.PROVOKED | platform.PROVOKED | episodes.PROVOKED
)
