"""A lending desk for an agent of your own. An episode needs two look-ups and one strict answer.

The agent is a service (`agent.py`) with its own loop. It asks the platform for the model's turns, and calls
this environment's tools in the episode's sandbox. So the environment knows what was looked up, and need not
trust the agent.

The module uses only the standard library, because a fresh sandbox imports it for every episode.
"""

from __future__ import annotations

import json

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import Any

    from headway_sandbox.environment import Message, Transcript
    from headway_sandbox.testing import Call, Seen, ToolResult

DAYS = {"gold": "thirty", "green": "twenty", "grey": "ten"}
PLACE = {"open": "hall", "desk": "counter", "vault": "office", "cart": "lobby"}
FIELDS = ("days", "place")


def rule(mapping: Mapping[str, str]) -> str:
    """A mapping as text for the procedure, such as `gold: thirty, green: twenty`."""
    return ", ".join(f"{key}: {value}" for key, value in mapping.items())


PROCEDURE = f"""Lending desk.
1. get_member.
2. get_book.
3. Answer with <answer>{{"days": "...", "place": "..."}}</answer> and nothing else.
days by card ({rule(DAYS)}).
place by shelf ({rule(PLACE)})."""


def opening(row: Mapping[str, Any]) -> list[Message]:
    """The first messages of an episode. The agent and the platform's own loop both begin with them."""
    return [system(PROCEDURE), user(row["prompt"])]


def expected(row: Mapping[str, Any]) -> dict[str, str]:
    """The right answer."""
    return {"days": DAYS[row["card"]], "place": PLACE[row["shelf"]]}


def parse(text: str) -> dict[str, str] | None:
    """The answer's fields; None unless the text is one tag around one object of exactly these fields.

    With a more lenient parser, the model would soon learn to write other texts that the parser accepts.
    """
    start, end = "<answer>", "</answer>"
    if not (text.startswith(start) and text.endswith(end)):
        return None
    try:
        pairs = json.loads(text[len(start) : -len(end)], object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        return None
    if sorted(key for key, _ in pairs) != sorted(FIELDS) or not all(isinstance(v, str) for _, v in pairs):
        return None
    return dict(pairs)


def written(answer: Mapping[str, str]) -> str:
    """An answer in the required form."""
    return f"<answer>{json.dumps(answer)}</answer>"


class LendingDesk(Environment):
    """One loan."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row = row
        return Observation(opening(row))

    @tool
    def get_member(self, name: str) -> dict[str, str]:
        """Card of a member."""
        if name != self.row["member"]:
            raise ToolError("no such member")
        return {"card": self.row["card"]}

    @tool
    def get_book(self, title: str) -> dict[str, str]:
        """Shelf of a book."""
        if title != self.row["book"]:
            raise ToolError("no such book")
        return {"shelf": self.row["shelf"]}

    def looked_up(self, transcript: Transcript) -> bool:
        """Whether card and shelf were looked up."""
        made = [(call.name, dict(call.arguments)) for call in transcript.calls]
        wanted = [("get_member", {"name": self.row["member"]}), ("get_book", {"title": self.row["book"]})]
        return all(call in made for call in wanted)

    def reward(self, transcript: Transcript) -> Reward:
        """Half for the share that is right, and half if all is right. Training uses this number."""
        answer, looked, right = parse(transcript.answer), self.looked_up(transcript), expected(self.row)
        fields = 0 if answer is None else sum(answer[name] == right[name] for name in FIELDS)
        share = 0.0 if answer is None else (fields + looked) / (len(FIELDS) + 1)
        metrics = {
            "completion": float(answer is not None),
            "fields": fields / len(FIELDS),
            "looked_up": float(looked),
        }
        return Reward((share + float(share == 1.0)) / 2, metrics)

    def score(self, transcript: Transcript) -> float:
        """1 if every field is right and was looked up, else 0. The score is reported, and not trained on."""
        return float(parse(transcript.answer) == expected(self.row) and self.looked_up(transcript))


def oracle(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Plays a row correctly: follows the procedure with the tools' answers.

    Tests, `headway check` and `headway tiny-model` call it. No sandbox does.
    """
    from headway_sandbox.testing import Call

    found = yield Call("get_member", {"name": seen.row["member"]})
    card = json.loads(found.content)["card"]
    found = yield Call("get_book", {"title": seen.row["book"]})
    shelf = json.loads(found.content)["shelf"]
    return written({"days": DAYS[card], "place": PLACE[shelf]})
