"""How each fault of headway_analysis.faults is provoked on a cluster, by its name."""

from provoked import episodes, inputs, manifests, platform
from provoked.provocation import Provocation

PROVOKED: dict[str, Provocation] = (
    manifests.PROVOKED | inputs.PROVOKED | platform.PROVOKED | episodes.PROVOKED
)
