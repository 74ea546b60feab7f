"""The refund desk with a judge: another model grades a quality of the answer that no rule can check."""

from __future__ import annotations

from environment import RefundDesk

from headway_sandbox.environment import Reward, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headway_sandbox.environment import Transcript

SHARE = 0.1
"""The judge's share of the reward. It is small because a judge may err, and the desk's own rules do not."""
VERDICT = {"enum": ["clear", "unclear"]}
"""The judge's possible answers. A judge chooses between a few values more consistently than it gives a
grade."""


class JudgedDesk(RefundDesk):
    """Adds a small reward for answers that a judge finds clear. The external score does not use the judge."""

    def reward(self, transcript: Transcript) -> Reward:
        """The weighted mean of the desk's reward and the judge's verdict.

        The judge sees only well-formed answers.
        """
        own = super().reward(transcript)
        metrics = dict(own.metrics or {})
        if not metrics["well_formed"]:
            return Reward((1 - SHARE) * own.value, metrics)
        asked = [user(f"Is this answer clear?\n{transcript.answer}")]
        clear = float(self.judge("clerk", asked, schema=VERDICT) == "clear")
        return Reward((1 - SHARE) * own.value + SHARE * clear, {**metrics, "clear": clear})
