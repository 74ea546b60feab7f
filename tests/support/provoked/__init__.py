"""How each fault of headway_analysis.faults is provoked on a cluster, by its name."""

from provoked import around, episodes, inputs, manifests
from provoked.provocation import Provocation

PROVOKED: dict[str, Provocation] = manifests.PROVOKED | inputs.PROVOKED | around.PROVOKED | episodes.PROVOKED
