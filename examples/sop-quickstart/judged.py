"""The refund desk with a judge: another model answers what no rule can decide about an answer."""

from __future__ import annotations

from environment import RefundDesk

from headway_sandbox.environment import Reward, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headway_sandbox.environment import Transcript

SHARE = 0.1
"""The judge's share of the reward: small, because a judge may err and the desk's own rules do not."""
VERDICT = {"enum": ["clear", "unclear"]}
"""A choice of few values is answered more steadily than a grade."""


class JudgedDesk(RefundDesk):
    """Pays an answer that a judge finds clear somewhat more. The score asks nobody."""

    def reward(self, transcript: Transcript) -> Reward:
        """The desk's reward and the judge's verdict. An answer that nobody can read is not asked about."""
        own = super().reward(transcript)
        metrics = dict(own.metrics or {})
        if not metrics["well_formed"]:
            return Reward((1 - SHARE) * own.value, metrics)
        asked = [user(f"Is this answer clear?\n{transcript.answer}")]
        clear = float(self.judge("clerk", asked, schema=VERDICT) == "clear")
        return Reward((1 - SHARE) * own.value + SHARE * clear, {**metrics, "clear": clear})
