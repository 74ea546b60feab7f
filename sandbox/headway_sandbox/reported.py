"""An environment for agents with their own tools and reward, such as agents made for SageMaker MTRL.

    agent: {http: {service: {name: my-agent, port: 8080}}}
    environment:
      image: ...                                        # the sandbox image as it is
      entrypoint: "headway_sandbox.reported:ReportedReward"
      config: {prompt: question, system: "Be brief."}   # both may be left out

It asks the row's question and trusts what the agent reports: reward and score are both the sum of the
reported values. Write your own environment if the two should differ, or if you can check them.
"""

from __future__ import annotations

from headway_sandbox.environment import Environment, Observation, Reward, system, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript


class ReportedReward(Environment):
    """The row's prompt, no tools, and the agent's own reward."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`prompt` is the column of the question (default `prompt`); `system` is a message before it."""
        super().__init__(config)
        for name, value in config.items():
            if name not in ("prompt", "system"):
                raise ValueError(f"{name} is not a setting; there are: prompt, system")
            if not isinstance(value, str):
                raise ValueError(f"{name} must be a string")
        self.column: str = config.get("prompt", "prompt")
        self.opening = [system(config["system"])] if "system" in config else []

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        """Ask the row's question."""
        prompt = row.get(self.column)
        if not isinstance(prompt, str):
            raise ValueError(
                f"the row has no text in column {self.column}; name one of {', '.join(row)} "
                "in spec.environment.config.prompt"
            )
        return Observation([*self.opening, user(prompt)])

    def reward(self, transcript: Transcript) -> Reward:
        """The sum of the reported values, and the reported metrics. Each turn gets its reward if the report
        has one for each."""
        value, reported = self.score(transcript), transcript.reported or ()
        turns = reported if len(reported) == transcript.turns else None
        return Reward(value, transcript.reported_metrics, turns)

    def score(self, transcript: Transcript) -> float:
        """The sum of the reported values. An episode without a report has no score, and is retried."""
        if transcript.reported is None:
            raise ValueError(
                "the agent reported no reward for its episode (spec.agent.http with reportsReward: true)"
            )
        return sum(transcript.reported)
