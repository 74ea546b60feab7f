"""The signals that training goes wrong: their names and states.

`headway_analysis.signals` computes them; `docs/signals.md` explains them. Names are stable: the condition
Healthy uses them as its reason, and alerts match on them.
"""

from enum import StrEnum
from typing import Final, Literal

SignalState = Literal["Unknown", "Clear", "Suspect", "Raised"]

STATE_VALUES: Final[dict[SignalState, int]] = {"Clear": 0, "Suspect": 1, "Raised": 2}
"""Number for a state where only numbers are possible (Prometheus, MLflow). Unknown is not shown there."""

MAX_SHOWN_SIGNALS: Final = 16
"""Signals in a job's status: first raised ones, then suspect, clear and unknown ones, each in the order of
`SignalName`. So only raised signals that are more severe can displace a raised one."""


class SignalName(StrEnum):
    """What can go wrong, the most severe first."""

    REWARD_COLLAPSED = "RewardCollapsed"
    """The reward dropped to about its lowest value after it had been higher."""
    NOTHING_TO_TRAIN = "NothingToTrain"
    """No group of several batches in a row has an advantage."""
    VALIDATION_DIVERGED = "ValidationDiverged"
    """The training reward rises, but that of held-out rows does not."""
    SCORE_DIVERGED = "ScoreDiverged"
    """The reward rises, but the external score of the same episodes does not."""
    ENTROPY_FALLING = "EntropyFalling"
    """The policy stops exploring."""
    ENTROPY_RISING = "EntropyRising"
    """The policy becomes noise."""
    GRADIENT_SPIKING = "GradientSpiking"
    """The gradient's norm jumps far above its earlier values."""
    POLICY_MISMATCH = "PolicyMismatch"
    """Servers and learner give the same tokens different probabilities on average."""
    MISMATCH_TAIL = "MismatchTail"
    """Servers and learner give a few tokens very different probabilities."""
    TOO_FEW_EFFECTIVE_SAMPLES = "TooFewEffectiveSamples"
    """A few tokens carry most of the batch's importance weight."""
    RATIOS_CLIPPED = "RatiosClipped"
    """Clipping takes the gradient from many tokens."""
    TOKENS_MASKED = "TokensMasked"
    """The off-policy correction leaves many tokens out."""
    REWARD_FLAT = "RewardFlat"
    """The reward has not risen since step 0."""
    GROUPS_UNIFORM = "GroupsUniform"
    """Most groups score alike and give no gradient, while the reward stalls."""
    PERMANENT_FAILURES = "PermanentFailures"
    """Episodes are lost permanently, by a fault of the platform or of the environment."""
    TURNS_TRUNCATED = "TurnsTruncated"
    """Turns are cut at maxTokens, or episodes at episodeTokenLimit."""
    CONTEXT_FULL = "ContextFull"
    """Episodes end because the context has no room for another turn."""
    EPISODES_TIMED_OUT = "EpisodesTimedOut"
    """Episodes do not end within rollout.timeoutSeconds."""
    TURNS_EXHAUSTED = "TurnsExhausted"
    """Episodes use up maxTurns."""
    LENGTH_EXPLODING = "LengthExploding"
    """Answers become much longer than before."""
    TOOL_CALLS_MALFORMED = "ToolCallsMalformed"
    """The gateway cannot parse tool calls."""
    TOOL_CALLS_INFLATING = "ToolCallsInflating"
    """Episodes make many more tool calls than before."""
    REPETITION = "Repetition"
    """Turns repeat the same text."""
    TASKS_DIVERGING = "TasksDiverging"
    """One task's reward falls while another's rises."""
    REWARD_ONE_SIDED = "RewardOneSided"
    """One number of the environment dominates the reward."""
    STALENESS_AT_BOUND = "StalenessAtBound"
    """Batches are as old as maxStepsOffPolicy allows, for a long time."""


ACTED_ON: Final = (
    SignalName.REWARD_COLLAPSED,
    SignalName.NOTHING_TO_TRAIN,
    SignalName.VALIDATION_DIVERGED,
    SignalName.SCORE_DIVERGED,
    SignalName.ENTROPY_RISING,
    SignalName.POLICY_MISMATCH,
    SignalName.TOO_FEW_EFFECTIVE_SAMPLES,
)
"""The signals that spec.collapse.policy acts on by default: those after which no job should continue
training. Each further step is wasted, or makes the model worse:

- there is no reward left to learn from, or no advantage (RewardCollapsed, NothingToTrain);
- what is learnt is not what is wanted (ValidationDiverged, ScoreDiverged);
- the policy has become noise, and so has what it is rewarded for (EntropyRising);
- the gradient is not that of the objective: its probabilities are wrong, or a few tokens make all of it
  (PolicyMismatch, TooFewEffectiveSamples).

The others are left to a person. Some are a fault of the platform or of a limit, and the steps between them
are sound. Some come and go in runs that succeed. A policy becomes surer (EntropyFalling), a gradient is
clipped (GradientSpiking), or a reward takes long to rise (RewardFlat).
"""
