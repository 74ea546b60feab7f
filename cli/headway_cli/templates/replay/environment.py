"""A parcel desk whose tools replay recordings. An episode needs two look-ups and one strict answer.

Each row has the calls of one case and the answers of production's tools. A tool finds its answer by the
arguments of the call. So no episode touches a live system, and each is the same wherever it runs.

The module uses only the standard library, because a fresh sandbox imports it for every episode.
"""

from __future__ import annotations

import json

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript
    from headway_sandbox.testing import Call, Seen, ToolResult

ACTION = {"lost": "refund", "torn": "replace", "held": "release", "moving": "wait"}
DAY = {"short": "today", "medium": "monday", "long": "friday"}
FIELDS = ("action", "day")


def rule(mapping: Mapping[str, str]) -> str:
    """A mapping as text for the procedure, such as `lost: refund, torn: replace`."""
    return ", ".join(f"{key}: {value}" for key, value in mapping.items())


PROCEDURE = f"""Parcel desk.
1. get_parcel.
2. get_depot of its depot.
3. Answer with <answer>{{"action": "...", "day": "..."}}</answer> and nothing else.
action by state ({rule(ACTION)}).
day by queue ({rule(DAY)})."""


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


class ParcelDesk(Environment):
    """One parcel."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.recorded = row["recorded"]
        self.expected = row["expected"]
        return Observation([system(PROCEDURE), user(row["prompt"])])

    @tool
    def get_parcel(self, parcel: str) -> Any:
        """State and depot of a parcel."""
        return self.replay("get_parcel", {"parcel": parcel})

    @tool
    def get_depot(self, depot: str) -> Any:
        """Queue at a depot."""
        return self.replay("get_depot", {"depot": depot})

    def replay(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The tool's recorded answer to this call."""
        for call in self.recorded:
            if call["tool"] == name and call["arguments"] == arguments:
                return call["answer"]
        raise ToolError("nothing is recorded for this call")

    def looked_up(self, transcript: Transcript) -> bool:
        """Whether every recorded call was made."""
        made = [(call.name, dict(call.arguments)) for call in transcript.calls]
        return all((call["tool"], call["arguments"]) in made for call in self.recorded)

    def reward(self, transcript: Transcript) -> Reward:
        """Half for the share that is right, and half if all is right. Training uses this number.

        The share distinguishes good tries from bad ones when no try is right.
        """
        answer, looked = parse(transcript.answer), self.looked_up(transcript)
        right = 0 if answer is None else sum(answer[name] == self.expected[name] for name in FIELDS)
        share = 0.0 if answer is None else (right + looked) / (len(FIELDS) + 1)
        metrics = {
            "completion": float(answer is not None),
            "fields": right / len(FIELDS),
            "looked_up": float(looked),
        }
        return Reward((share + float(share == 1.0)) / 2, metrics)

    def score(self, transcript: Transcript) -> float:
        """1 if every field is right and was looked up, else 0. The score is reported, and not trained on."""
        return float(parse(transcript.answer) == self.expected and self.looked_up(transcript))


def oracle(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Plays a row correctly: follows the procedure with the tools' answers.

    Tests, `headway check` and `headway tiny-model` call it. No sandbox does.
    """
    from headway_sandbox.testing import Call

    found = yield Call("get_parcel", {"parcel": seen.row["parcel"]})
    parcel = json.loads(found.content)
    found = yield Call("get_depot", {"depot": parcel["depot"]})
    depot = json.loads(found.content)
    return written({"action": ACTION[parcel["state"]], "day": DAY[depot["queue"]]})
