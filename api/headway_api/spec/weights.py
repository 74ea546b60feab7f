"""How new weights reach the rollout servers."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.spec.model import ModelSpec


class WeightsSpec(SpecModel):
    """How the learner publishes full weights. An adapter is always published whole, as files."""

    backend: Literal["auto", "file", "delta", "nccl"] = "auto"
    """auto is delta with bfloat16 and file with float32, where nearly every element changes in each step.
    file writes all weights at each step; delta only the elements that changed, compressed. nccl writes
    nothing at most steps: the servers take the weights from the learner's memory. Transport is NCCL if
    learner and servers compute on GPUs (untested), otherwise gloo."""
    full_every_steps: Annotated[int, Field(ge=1, le=1000)] = 10
    """With delta and nccl, all weights are written to the store at least every this many steps. With delta, a
    server that joins fetches the last full version and the deltas since. Validated steps are full versions
    too, and so is the last step at the end."""

    def chosen(self, dtype: str) -> Literal["file", "delta", "nccl"]:
        """The backend of a job with full weights in `dtype`."""
        if self.backend == "auto":
            return "delta" if dtype == "bfloat16" else "file"
        return self.backend

    def direct(self, model: ModelSpec) -> bool:
        """Whether the servers of a job that trains `model` take weights out of the learner's memory."""
        return model.effective_lora is None and self.chosen(model.dtype) == "nccl"
