"""Faults that appear only when learner and rollout servers start, or when episodes run."""

from __future__ import annotations

from headway_analysis.faults.definition import Fault, FaultKind, Stage

ENTRYPOINT = "spec.environment.entrypoint: "

FAULTS: tuple[Fault, ...] = (
    Fault(
        "learner-out-of-memory",
        FaultKind.NODE,
        Stage.RUN,
        "The learner needs more memory than its limit.",
        "spec.learner.resources: container learner of pod ... was OOMKilled at its limit of ...; raise its "
        "memory (limits.memory)",
        state="Starting",
        reason="OutOfMemory",
        condition="LearnerReady",
        event="OutOfMemory",
        seconds=60,
    ),
    Fault(
        "server-out-of-memory",
        FaultKind.NODE,
        Stage.RUN,
        "A rollout server needs more memory than its limit.",
        "spec.rollout.resources: container rollout of pod ... was OOMKilled at its limit of ...; raise its "
        "memory (limits.memory)",
        state="Starting",
        reason="OutOfMemory",
        condition="RolloutReady",
        event="OutOfMemory",
        seconds=60,
    ),
    Fault(
        "disk-full",
        FaultKind.NODE,
        Stage.RUN,
        "The volume of the learner has no room for the base model.",
        "cacheSizeLimit of the chart's values: the volume for models has no room for ... (No space left on "
        "device); ask an administrator for a larger limit or larger disks",
        state="Starting",
        reason="ProcessFailed",
        condition="LearnerReady",
        event="ProcessFailed",
        seconds=60,
    ),
    Fault(
        "volume-beyond-its-limit",
        FaultKind.NODE,
        Stage.RUN,
        "The learner's volume exceeds its limit, and the kubelet evicts the pod.",
        "cacheSizeLimit of the chart's values: pod ...: "
        'Usage of EmptyDir volume "cache" exceeds the limit ...; '
        "ask an administrator to raise it",
        "A kubelet checks volumes about once a minute: until then, the pod runs.",
        state="Starting",
        reason="Disrupted",
        condition="LearnerReady",
        event="Disrupted",
        seconds=180,
    ),
    Fault(
        "out-of-time",
        FaultKind.MANIFEST,
        Stage.RUN,
        "The job has reached its time limit.",
        "spec.activeDeadlineSeconds: the job has run for ... s; raise it in a new job, or lower "
        "spec.schedule.maxSteps",
        reason="ActiveDeadlineExceeded",
    ),
    Fault(
        "nothing-to-train",
        FaultKind.ENVIRONMENT,
        Stage.RUN,
        "In every group, all episodes have the same reward, so the model learns nothing.",
        "no group had an advantage in the last ... steps",
        "[NothingToTrain](signals.md#nothingtotrain) says what to change first.",
        state="Training",
        reason="NothingToTrain",
        condition="Healthy",
        event="SignalRaised",
        seconds=240,
    ),
    Fault(
        "tool-hangs",
        FaultKind.ENVIRONMENT,
        Stage.RUN,
        "A tool never returns.",
        ENTRYPOINT + "tool get_case has not returned by the end of the episode's time: "
        "/environment/odd.py:... in get_case. It ended ... episodes, and no episode was scored",
        "Set a timeout for the call at the line that the message names. Until the job gives up, "
        "EpisodesFailing says the same.",
        reason="EnvironmentHangs",
        seconds=120,
    ),
    Fault(
        "tool-hangs-at-times",
        FaultKind.ENVIRONMENT,
        Stage.RUN,
        "A tool returns in most episodes, but never in some.",
        ENTRYPOINT + "tool get_case has not returned by the end of the episode's time: "
        "/environment/odd.py:... in get_case. It has ended ... episodes or more",
        "Set a timeout for the call at the line that the message names. Such episodes are retried, so "
        "the job continues slowly.",
        state="Training",
        reason="EpisodesFailing",
        condition="Healthy",
        event="EpisodesFailing",
        seconds=120,
    ),
    Fault(
        "reward-raises-after-a-call",
        FaultKind.ENVIRONMENT,
        Stage.RUN,
        "The environment can judge an episode without a tool call, but not one with a tool call.",
        ENTRYPOINT
        + "reward raised ZeroDivisionError: no price of get_case (/environment/odd.py:... in reward). "
        "It ended ... episodes, and no episode was scored",
        "Correct the line that the message names.",
        reason="RewardFailed",
        seconds=180,
    ),
    Fault(
        "weights-of-another-model",
        FaultKind.WEIGHTS,
        Stage.RUN,
        "The weights do not have the sizes that config.json describes. Only loading them shows this.",
        "spec.model.base: ...; give a complete Hugging Face folder (config.json, safetensors weights) of a "
        "model",
        "Upload the whole folder of one model.",
        reason="ModelNotLoadable",
        seconds=60,
    ),
    Fault(
        "lost-checkpoint",
        FaultKind.WEIGHTS,
        Stage.RUN,
        "The checkpoint that the job resumes from is missing or damaged.",
        "cannot be resumed from (...); if this does not pass, set latest.json in the job's folder to an "
        "older step whose checkpoint has report.json",
        "[Going back to an older checkpoint](operations.md#going-back-to-an-older-checkpoint) says how to "
        "name another one.",
        state="Starting",
        reason="ProcessFailed",
        condition="LearnerReady",
        event="ProcessFailed",
        seconds=60,
    ),
)
