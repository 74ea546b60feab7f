"""Lets a tiny model play episodes: asks the model turn by turn and runs its calls, like a job's tool loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway_analysis.preflight.playing import EpisodeCutError, Turns
from headway_cli.tiny.speech import answered
from headway_sandbox.testing import Call, Seen

MAX_TURNS = 32
"""Maximum turns of an agent for which the job has no limit."""


@dataclass(frozen=True)
class ModelAgent:
    """Plays episodes with the turns that a model samples."""

    model: Any
    renderer: Any
    max_tokens: int
    """Maximum tokens of one turn."""
    context: int
    """Maximum tokens of an episode."""
    max_turns: int = MAX_TURNS
    temperature: float = 0.0
    """Temperature of sampling. At 0 the likeliest token is chosen each time."""

    def __call__(self, seen: Seen) -> Turns:
        """Play one episode.

        Raises:
            EpisodeCutError: the episode has used up its turns, tokens or context.
        """
        tools = [dict(tool) for tool in seen.tools]
        tokens = list(
            self.renderer.render_ids(list(seen.messages), tools=tools or None, add_generation_prompt=True)
        )
        talk = _Talk(self.model, seen.random.randrange(2**31), self.temperature)
        for _ in range(self.max_turns):
            prompt = list(tokens)
            sampled = talk.turn(tokens, self._room(tokens), self.renderer.get_stop_token_ids())
            tokens += sampled
            parsed = self.renderer.parse_response(sampled, tools=tools or None, prompt_ids=prompt)
            calls = [
                each for each in parsed.tool_calls or [] if each.name and isinstance(each.arguments, dict)
            ]
            if not calls:
                return str(parsed.content)
            # The model is taught to call one tool a turn, so further calls of the turn are ignored.
            result = yield Call(calls[0].name, calls[0].arguments)
            tokens = answered(self.renderer, prompt, sampled, calls[0].name, result.content, tools)
        raise EpisodeCutError

    def _room(self, tokens: Sequence[int]) -> int:
        limit = min(self.max_tokens, self.context - len(tokens))
        if limit < 1:
            raise EpisodeCutError
        return limit


class _Talk:
    """One conversation with the model. It keeps the KV cache of the tokens so far."""

    def __init__(self, model: Any, seed: int, temperature: float) -> None:
        import torch

        self._model, self._temperature = model, temperature
        self._drawn = torch.Generator().manual_seed(seed)
        self._cache: Any = None
        self._read = 0

    def turn(self, tokens: Sequence[int], limit: int, stops: Sequence[int]) -> list[int]:
        """Sample a turn after `tokens`, including its stop token.

        Raises:
            EpisodeCutError: the turn does not end within `limit` tokens.
        """
        import torch

        so_far, sampled = list(tokens), list[int]()
        with torch.no_grad():
            while len(sampled) < limit:
                out = self._model(
                    input_ids=torch.tensor([so_far[self._read :]]),
                    past_key_values=self._cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                self._cache, self._read = out.past_key_values, len(so_far)
                token = self._chosen(out.logits[0, -1])
                so_far.append(token)
                sampled.append(token)
                if token in stops:
                    return sampled
        raise EpisodeCutError

    def _chosen(self, logits: Any) -> int:
        import torch

        if not self._temperature:
            return int(logits.argmax())
        shares = (logits / self._temperature).softmax(-1)
        return int(torch.multinomial(shares, 1, generator=self._drawn))
