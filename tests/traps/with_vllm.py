"""The quickstart's tiny model in a real vLLM, as an agent."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import base_model
from rollout_server import RolloutServer
from tests.traps.desk import CONTEXT

from headway_sandbox.testing import Call, EpisodeCutError, Malformed, Seen, ToolResult

Turns = Generator[Call, ToolResult, str]


def model(server: RolloutServer, tokenizer: Any, max_tokens: int) -> Callable[[Seen], Turns]:
    """The model of a running server as an agent.

    It samples with tokens as input and output, as the platform does.
    """
    renderer = base_model.renderer_for(tokenizer)

    def agent(seen: Seen) -> Turns:
        prompt = renderer.render_ids(list(seen.messages), tools=list(seen.tools), add_generation_prompt=True)
        while True:
            drawn = seen.random.randrange(2**31)
            if len(prompt) + max_tokens > CONTEXT:
                raise EpisodeCutError
            stops = renderer.get_stop_token_ids()
            answer = server.generate("base", prompt, max_tokens=max_tokens, seed=drawn, stop_token_ids=stops)
            [choice] = answer["choices"]
            sampled = list(choice["token_ids"])
            if choice["finish_reason"] == "length":
                raise EpisodeCutError(tokenizer.decode(sampled))
            parsed = renderer.parse_response(sampled, tools=list(seen.tools), prompt_ids=prompt)
            calls = [each for each in parsed.tool_calls or [] if each.name]
            good = [each for each in calls if isinstance(each.arguments, dict)]
            if calls and not good:
                return Malformed(tokenizer.decode(sampled))
            if not good:
                return str(parsed.content or "")
            results = []
            for each in good:
                result = yield Call(each.name, each.arguments)
                results.append({"role": "tool", "name": each.name, "content": result.content})
            prompt = renderer.bridge_to_next_turn(prompt, sampled, results, tools=list(seen.tools)).token_ids

    return agent
