"""How new weights reach the rollout servers."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import not_yet


class WeightsSpec(SpecModel):
    """How the learner publishes full weights. An adapter is always published whole, as files."""

    backend: Annotated[
        Literal["auto", "file", "delta", "nccl"],
        not_yet("spec.learner.weights.backend: nccl is not run by this version; use delta", values=("nccl",)),
    ] = "auto"
    """auto is delta in bfloat16 and file in float32, where nearly every element changes in each step. file
    writes all weights at each step; delta only the elements that changed, compressed. nccl is not run yet."""
    full_every_steps: Annotated[int, Field(ge=1, le=1000)] = 10
    """With delta, a full version at least each so many steps: a server that joins fetches the last one and
    the deltas since. Validated steps are full too, and so is the last one's folder in the end."""

    def chosen(self, dtype: str) -> Literal["file", "delta"]:
        """The backend of a job with full weights in `dtype`."""
        if self.backend == "auto":
            return "delta" if dtype == "bfloat16" else "file"
        assert self.backend != "nccl"  # refused above
        return self.backend
