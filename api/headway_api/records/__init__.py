"""The typed records that travel between the processes of a job.

    coordinator -> vLLM      token ids in, token ids out (vLLM's own API)
    coordinator -> sandbox   `sandbox_api` documents
    learner     -> coordinator   GET /v1/batch, POST /v1/steps        (`Batch`, `StepReport`)
    coordinator -> weight agent  POST, GET, DELETE /v1/weights?slot=  (`WeightsManifest`, `WeightsState`)
    coordinator -> artifact store   `GroupRecord` (the spool), usage segments
    learner     -> artifact store   `StepReport` beside its checkpoint

Records are immutable and refuse unknown fields, because two processes of one job always run one version. A
record refuses NaN and infinity: JSON has no such numbers, so no reader could parse them.
"""

from headway_api.records.episodes import (
    FORK_REASONS,
    MALFORMED_KINDS,
    MAX_IGNORED,
    MAX_SPANS,
    Drift,
    EpisodeRecord,
    EpisodeSpan,
    ForkReason,
    Judgement,
    MalformedKind,
    SampledBy,
    SpanKind,
    TrainingRow,
    Turn,
    TurnSpan,
    VersionSpan,
)
from headway_api.records.groups import (
    Abandoned,
    AbandonReason,
    Batch,
    Finished,
    GroupRecord,
)
from headway_api.records.steps import (
    BatchMetrics,
    Metrics,
    RowResult,
    StepReport,
    ValidationRecord,
)
from headway_api.records.usage import (
    UsageClass,
    UsageEvent,
)
from headway_api.records.versions import (
    Outcome,
    PolicyVersion,
    Purpose,
)
from headway_api.records.waits import (
    MAX_BATCH_WAITS,
    BatchWait,
    BatchWaitKind,
    BatchWaits,
)
from headway_api.records.weights import (
    Canary,
    DirectSource,
    FileDigest,
    LoadFailure,
    TensorDigests,
    WeightsLink,
    WeightsManifest,
    WeightsState,
)

__all__ = [
    "FORK_REASONS",
    "MALFORMED_KINDS",
    "MAX_BATCH_WAITS",
    "MAX_IGNORED",
    "MAX_SPANS",
    "AbandonReason",
    "Abandoned",
    "Batch",
    "BatchMetrics",
    "BatchWait",
    "BatchWaitKind",
    "BatchWaits",
    "Canary",
    "DirectSource",
    "Drift",
    "EpisodeRecord",
    "EpisodeSpan",
    "FileDigest",
    "Finished",
    "ForkReason",
    "GroupRecord",
    "Judgement",
    "LoadFailure",
    "MalformedKind",
    "Metrics",
    "Outcome",
    "PolicyVersion",
    "Purpose",
    "RowResult",
    "SampledBy",
    "SpanKind",
    "StepReport",
    "TensorDigests",
    "TrainingRow",
    "Turn",
    "TurnSpan",
    "UsageClass",
    "UsageEvent",
    "ValidationRecord",
    "VersionSpan",
    "WeightsLink",
    "WeightsManifest",
    "WeightsState",
]
