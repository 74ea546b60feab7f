"""What a user writes: the `spec` of both kinds."""

from headway_api.spec.training import RLTrainingJob, RLTrainingJobSpec

__all__ = ["RLTrainingJob", "RLTrainingJobSpec"]
