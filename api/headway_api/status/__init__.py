"""What the platform reports: the `status` of RLTrainingJob and RLEvalJob.

The operator and the coordinator both write it. Each has its own field manager and leaves the other's fields
alone (`names.FIELD_MANAGER_OPERATOR`, `names.FIELD_MANAGER_COORDINATOR`). The status is not the source of any
number: its numbers are computed from the ledger and the step reports. Fractions are strings, as everywhere in
Kubernetes.
"""

from headway_api.status.common import (
    Generation,
    MlflowRun,
    Role,
    State,
    Text,
    Tracking,
    decimal,
    list_map,
)
from headway_api.status.evaluation import (
    CandidateResult,
    Difference,
    EvalArtifacts,
    EvalProgress,
    GateResult,
    Headline,
    Interval,
    ResolvedCandidate,
    RLEvalJobStatus,
    SuiteResult,
)
from headway_api.status.health import (
    Pause,
    Remediation,
    RemedyMeasurements,
    RemedyOrder,
    RemedyState,
    Signal,
)
from headway_api.status.preflight import (
    Check,
    Preflight,
    PreflightFinding,
)
from headway_api.status.training import (
    Algorithm,
    Artifacts,
    BestValidation,
    Checkpoint,
    Checkpoints,
    Reward,
    RLTrainingJobStatus,
    StartingWeights,
    TaskValidation,
    Test,
    TestResult,
    TrainingProgress,
    Validation,
    Weights,
)
from headway_api.status.usage import (
    Budget,
    BudgetLimit,
    Estimate,
    Usage,
)

__all__ = [
    "Algorithm",
    "Artifacts",
    "BestValidation",
    "Budget",
    "BudgetLimit",
    "CandidateResult",
    "Check",
    "Checkpoint",
    "Checkpoints",
    "Difference",
    "Estimate",
    "EvalArtifacts",
    "EvalProgress",
    "GateResult",
    "Generation",
    "Headline",
    "Interval",
    "MlflowRun",
    "Pause",
    "Preflight",
    "PreflightFinding",
    "RLEvalJobStatus",
    "RLTrainingJobStatus",
    "Remediation",
    "RemedyMeasurements",
    "RemedyOrder",
    "RemedyState",
    "ResolvedCandidate",
    "Reward",
    "Role",
    "Signal",
    "StartingWeights",
    "State",
    "SuiteResult",
    "TaskValidation",
    "Test",
    "TestResult",
    "Text",
    "Tracking",
    "TrainingProgress",
    "Usage",
    "Validation",
    "Weights",
    "decimal",
    "list_map",
]
