"""A simulated model: its words are drawn at random, and its answers grow longer as training goes on.

Its simulated prefix cache works as vLLM's: it has whole blocks of a prompt that the same version saw before.
"""

from __future__ import annotations

import random
from pathlib import Path

from aiohttp import web
from tests.estimate.slots import Slots
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.document import Json

BLOCK = 16
"""Tokens of a block."""
WORDS = ("gold", "row", "case", "clerk", "since", "spring", "open", "was", "the", "and", "by", "left")
TOOLS = ("look_up", "count", "list_rows")


class Course:
    """How well the model and the environment do. The learner advances it by steps."""

    def __init__(self, number: int, growth: float, skill: float) -> None:
        """Args:
        number: seed of its random draws.
        growth: share by which each step makes answers longer.
        skill: chance that an episode succeeds before any training.
        """
        self.rng, self.growth, self.skill, self.step = random.Random(number), growth, skill, 0

    def says(self, prompt: str) -> tuple[str, str]:
        """The next turn and its finish reason: some calls at first, then an answer of log-normal length."""
        turn, luck = prompt.count("<tool_response>"), self.rng.random()
        if turn == 0 or (turn < 5 and luck < 0.55):
            call = (
                f'{{"name": "{self.rng.choice(TOOLS)}", "arguments": {{"key": "{self.rng.randrange(100)}"}}}}'
            )
            return f"<tool_call>\n{call}\n</tool_call><|im_end|>", "stop"
        longer = (1 + self.growth) ** self.step
        words = round(min(60.0, 6 * longer * self.rng.lognormvariate(0.0, 0.6)))
        return " ".join(self.rng.choice(WORDS) for _ in range(max(1, words))) + ".<|im_end|>", "stop"


class Clerk:
    """The sandbox of an episode: tool answers of different lengths, and a random reward."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def reset(self, body: Json) -> Json:
        """The row's own prompt."""
        return {"messages": [{"role": "user", "content": body["row"]["prompt"]}], "tools": []}

    def call(self, body: Json) -> Json:
        """A tool answer of random words."""
        rng = self._course.rng
        many = 1 + min(12, int(rng.expovariate(0.4)))
        return {"content": " ".join(rng.choice(WORDS) for _ in range(many)), "done": False}

    def finish(self, body: Json) -> Json:
        """A random reward of 0 or 1."""
        course = self._course
        right = float(course.rng.random() < min(0.95, course.skill * (1 + 0.03 * course.step)))
        return {"reward": right, "score": right, "metrics": {}}


class Spoken:
    """A rollout server with a simulated model."""

    def __init__(self, folder: Path, course: Course) -> None:
        self._tokenizer = tokenizer(folder / "engine", QWEN3_TEMPLATE)
        self._course = course
        self._blocks: set[tuple[str, int]] = set()
        self._slots = Slots()

    def app(self) -> web.Application:
        return self._slots.app(self._generate)

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt, limit = body["token_ids"], body["sampling_params"]["max_tokens"]
        text, finish = self._course.says(self._tokenizer.decode(prompt))
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) > limit:
            tokens, finish = tokens[:limit], "length"
        content = [{"token_id": token, "logprob": -0.5} for token in tokens]
        choice = {"finish_reason": finish, "token_ids": tokens, "logprobs": {"content": content}}
        usage = {"prompt_tokens_details": {"cached_tokens": self._cached(body["cache_salt"], prompt)}}
        return web.json_response({"choices": [choice], "usage": usage})

    def _cached(self, salt: str, prompt: list[int]) -> int:
        """How many tokens of the prompt were in the cache. The whole prompt is cached afterwards."""
        ends = range(BLOCK, len(prompt), BLOCK)
        blocks = [(salt, hash(tuple(prompt[:end]))) for end in ends]
        known = 0
        while known < len(blocks) and blocks[known] in self._blocks:
            known += 1
        self._blocks.update(blocks)
        return known * BLOCK
