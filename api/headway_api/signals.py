"""The signs that training goes wrong: their names and states.

How each is computed is `headway_analysis.signals`; `docs/signals.md` explains them. Names are stable: the
condition Healthy has them as its reason, alerts match on them.
"""

from enum import StrEnum
from typing import Final, Literal

SignalState = Literal["Unknown", "Clear", "Suspect", "Raised"]

STATE_VALUES: Final[dict[SignalState, int]] = {"Clear": 0, "Suspect": 1, "Raised": 2}
"""How a state is shown where only numbers are (Prometheus, MLflow). Unknown is not shown there."""

SHOWN_MOST: Final = 16
"""Signals in a job's status: first those that are raised, then suspect, clear and unknown ones, each in the
order of `SignalName`. So a raised one gives way to graver ones that are raised too, and to nothing else."""


class SignalName(StrEnum):
    """What can be seen to go wrong, the gravest first: of several, the first one is the worst."""

    REWARD_COLLAPSED = "RewardCollapsed"
    """The reward dropped to about its lowest value after it had been higher."""
    NOTHING_TO_TRAIN = "NothingToTrain"
    """No group of several batches in a row has an advantage."""
    VALIDATION_PARTED = "ValidationParted"
    """The training reward rises, and that of held-out rows does not."""
    SCORE_PARTED = "ScoreParted"
    """The reward rises, and the external score of the same episodes does not."""
    ENTROPY_FALLING = "EntropyFalling"
    """The policy stops exploring."""
    ENTROPY_RISING = "EntropyRising"
    """The policy becomes noise."""
    GRADIENT_SPIKING = "GradientSpiking"
    """The gradient's norm jumps far above what it was."""
    POLICY_MISMATCH = "PolicyMismatch"
    """Servers and learner give the same tokens different probabilities on average."""
    MISMATCH_TAIL = "MismatchTail"
    """They do so for a few tokens, and by far."""
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
    """Episodes are lost for good, by a fault of the platform or of the environment."""
    TURNS_TRUNCATED = "TurnsTruncated"
    """Turns are cut at maxTokens."""
    CONTEXT_FULL = "ContextFull"
    """Episodes end since the context has no room for another turn."""
    EPISODES_TIMED_OUT = "EpisodesTimedOut"
    """Episodes do not end within rollout.timeoutSeconds."""
    TURNS_EXHAUSTED = "TurnsExhausted"
    """Episodes use up maxTurns."""
    LENGTH_EXPLODING = "LengthExploding"
    """Answers become much longer than they were."""
    TOOL_CALLS_MALFORMED = "ToolCallsMalformed"
    """Tool calls cannot be read."""
    TOOL_CALLS_INFLATING = "ToolCallsInflating"
    """Episodes make many more tool calls than they did."""
    REPETITION = "Repetition"
    """Turns say the same again and again."""
    TASKS_DIVERGING = "TasksDiverging"
    """One task's reward falls while another's rises."""
    REWARD_ONE_SIDED = "RewardOneSided"
    """One number of the environment takes over the reward."""
    STALENESS_AT_BOUND = "StalenessAtBound"
    """Batches are as old as maxStepsOffPolicy allows for long."""


ACTED_UPON: Final = (
    SignalName.REWARD_COLLAPSED,
    SignalName.NOTHING_TO_TRAIN,
    SignalName.VALIDATION_PARTED,
    SignalName.SCORE_PARTED,
    SignalName.ENTROPY_RISING,
    SignalName.POLICY_MISMATCH,
    SignalName.TOO_FEW_EFFECTIVE_SAMPLES,
)
"""The signals that spec.collapse.policy acts upon unless its job names others: those through which no job
should go on training. Each further step is for nothing, or makes the model worse:

- there is no reward left to learn from, or no advantage (RewardCollapsed, NothingToTrain);
- what is learnt is not what is wanted (ValidationParted, ScoreParted);
- the policy has become noise, and so has what it is rewarded for (EntropyRising);
- the gradient is not that of the objective: its probabilities are wrong, or a few tokens make all of it
  (PolicyMismatch, TooFewEffectiveSamples).

The others are left to a person. Some are a fault of the platform or of a limit, and the steps between them
are sound. Some come and go in runs that end well: a policy that becomes surer (EntropyFalling), a gradient
that is clipped (GradientSpiking), a reward that takes long to rise (RewardFlat).
"""
