"""A made-up training run: the model's turns, the rewards, and the optimizer's metrics.

The model learns: it answers right more and more often, wastes fewer calls, and its entropy falls. Twice, its
gradient jumps for a while, as before a collapse. Nothing is trained. The run only gives the platform
something to show and to judge.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from headway_api.document import Json
from headway_api.metrics import OBJECTIVE, TIMING, TRAINING
from headway_api.records import GroupRecord

OF_COORDINATOR = {"timing_s/eval", "timing_s/weight_sync"}
OF_A_FIRST_STEP = {"timing_s/start"}
LEARNERS = {family.name for family in (*OBJECTIVE, *TRAINING, *TIMING)} - OF_COORDINATOR - OF_A_FIRST_STEP
"""Every metric that the learner reports at each step."""
SPIKES = {*range(10, 15), *range(41, 61)}
"""Steps whose gradient is far above the others', so that the signal GradientSpiking is raised."""
TOOLS = ("look_up", "count", "list_rows")
WORDS = ("gold", "row", "case", "clerk", "since", "spring", "open", "was", "the", "and", "by", "left")


@dataclass
class Course:
    """The state of one run, which model, environment and learner share."""

    rng: random.Random = field(default_factory=lambda: random.Random(20))
    step: int = 0
    learning_rate: float = 4e-5
    """The learning rate in force, after a few steps of warmup."""

    @property
    def skill(self) -> float:
        """Chance that an episode succeeds."""
        return 0.15 + 0.75 * (1 - math.exp(-self.step / 18))

    def says(self, prompt: str) -> tuple[str, str]:
        """The text of the model's next turn, and its finish reason."""
        turn, luck = prompt.count("<tool_response>"), self.rng.random()
        if luck < 0.15 * (1 - self.skill):
            return "<tool_call>{oops}</tool_call><|im_end|>", "stop"
        if turn == 0 or (turn < 3 and luck < 0.5):
            name = self.rng.choice(TOOLS[: 1 + turn])
            call = f'{{"name": "{name}", "arguments": {{"key": "{self.rng.randrange(100)}"}}}}'
            return f"<tool_call>\n{call}\n</tool_call><|im_end|>", "stop"
        words = [self.rng.choice(WORDS) for _ in range(self.rng.randrange(3, 8 + self.step // 8))]
        cut = self.rng.random() < 0.06
        return " ".join(words) + ("" if cut else ".<|im_end|>"), "length" if cut else "stop"

    def environment(self, verb: str, body: Json) -> Json:
        """The sandbox's answer to a request."""
        if verb == "reset":
            return {"messages": [{"role": "user", "content": "Handle the case."}], "tools": []}
        if verb == "tool":
            failed = self.rng.random() < 0.2 * (1 - self.skill)
            return {"content": "error: no such row" if failed else "gold", "done": False}
        right, neat = float(self.rng.random() < self.skill), float(self.rng.random() < 0.9)
        return {"reward": 0.8 * right + 0.2 * neat, "score": right, "metrics": {"right": right, "neat": neat}}

    def metrics(self, step: int, groups: list[GroupRecord]) -> dict[str, float]:
        """The learner's metrics of a step; empty if the step has no groups."""
        self.step = step
        if not groups:
            return {}
        found = self._optimizer(step) | self._rows(groups) | self._seconds()
        missing = found.keys() ^ LEARNERS
        assert not missing, f"give each a value here, or declare it in api/headway_api/metrics/: {missing}"
        return found

    def _around(self, value: float, spread: float = 0.15) -> float:
        return value * self.rng.lognormvariate(0, spread)

    def _optimizer(self, step: int) -> dict[str, float]:
        late, around = math.exp(-step / 25), self._around
        spike = 8 if step in SPIKES else 1
        return {
            "training/loss": self.rng.gauss(0.02 * late, 0.01),
            "training/grad_norm": around(0.3 + 0.5 * late) * spike,
            "training/learning_rate": self.learning_rate * min(1.0, step / 5),
            "training/ratio_mean": self.rng.gauss(1, 0.01),
            "training/ratio_min": around(0.6),
            "training/ratio_max": around(1.8),
            "training/clip_fraction": around(0.01),
            "training/entropy": around(0.2 + 0.7 * late, 0.03),
            "training/correction_weight_mean": self.rng.gauss(1, 0.005),
            "training/masked_fraction": around(0.002),
            "training/reference_kl": around(0.02 * (1 - late)),
            "training/mismatch_kl": around(0.0006),
            "training/mismatch_far_share": around(0.0004),
            "training/effective_sample_share": 1 - around(0.01),
            "training/logprob_gap_mean": self.rng.gauss(0, 0.002),
            "training/logprob_gap_max": around(0.4),
            "training/updates": 1.0,
            "training/micro_batches": 2.0,
            "training/lag_mean": 0.6,
            "training/lag_max": 1.0,
        }

    def _rows(self, groups: list[GroupRecord]) -> dict[str, float]:
        episodes = [episode for group in groups for episode in group.scored]
        rows = [row for episode in episodes for row in episode.rows]
        tokens = float(sum(len(row.tokens) for row in rows))
        trained = sum(len({episode.reward for episode in group.scored}) > 1 for group in groups)
        return {
            "training/epoch": 0.0,
            "training/global_step": float(self.step),
            "training/num_groups": float(len(groups)),
            "training/num_trajectories": float(len(episodes)),
            "training/total_tokens": tokens,
            "training/num_datums": float(len(rows)),
            "training/datums_per_trajectory": len(rows) / len(episodes),
            "training/action_tokens_mean": 0.2 * tokens / len(episodes),
            "training/obs_tokens_mean": 0.8 * tokens / len(episodes),
            "training/trainable_token_positions": 0.2 * tokens,
            "training/nontrainable_token_positions": 0.8 * tokens,
            "training/trainable_token_ratio": 0.2,
            "training/num_trained_groups": float(trained),
        }

    def _seconds(self) -> dict[str, float]:
        around = self._around
        found = {
            "timing_s/wait_for_batch": around(0.25),
            "timing_s/policy_update": around(0.35),
            "timing_s/save_checkpoint": around(0.04),
            "timing_s/report": around(0.02),
            "timing_s/prune": around(0.01),
            "timing_s/publish_weights": around(0.05),
            "timing_s/other": around(0.001),
        }
        training = sum(found.values()) - found["timing_s/wait_for_batch"]
        return found | {"timing_s/training": training, "timing_s/step": sum(found.values())}
