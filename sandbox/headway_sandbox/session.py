"""The one episode of a sandbox pod: bound to a lease, reset once, judged once.

The server calls tools itself and records each call. Reward and score see that record, besides the
conversation from `/finish`. So text in which a model merely claims a call or a reward remains text. The
documents are those of `headway_api.sandbox_api`, whose models need more than the standard library.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import math
import sys
import time
from hmac import compare_digest, digest

from headway_sandbox import awaited, bounds
from headway_sandbox.awaited import awaited_result
from headway_sandbox.environment import Call, ToolError, Transcript
from headway_sandbox.faults import ENTRYPOINT_FIELD, fault, place, stack, unusable
from headway_sandbox.grouped import grouped
from headway_sandbox.http import HttpError
from headway_sandbox.returns import TURN_REWARDS_TOLERANCE as TURN_REWARDS_TOLERANCE
from headway_sandbox.returns import UnusableReturnError, reward_of, rewards_of, score_of
from headway_sandbox.returns import wrong_turns as wrong_turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from headway_sandbox.agent import Agent
    from headway_sandbox.environment import Environment
    from headway_sandbox.tools import Tool

PROOF_PREFIX = "headway-lease:"
"""Equal to `headway_api.sandbox_api.PROOF_PREFIX`."""
CHALLENGE = 64
"""Characters of a challenge."""
MAX_AGENT_WAIT = 60
"""Equal to `headway_api.sandbox_api.MAX_AGENT_WAIT`."""
HANG_SHARE = 0.95
"""Share of the episode's time after which a running method is reported to hang. At that time, the coordinator
still waits for its result."""
HANG_SECONDS = 0.3
"""A method that has run for fewer seconds does not hang."""
MAX_SECONDS = 1e6
WATCH_SECONDS = 0.2
END_SECONDS = 5.0
"""Seconds to wait for the end of a killed agent."""
JUDGES = "headway_sandbox.judges"


class Running:
    """A running method of the environment: which one, in which thread and since when."""

    __slots__ = ("since", "thread", "where")

    def __init__(self, where: str) -> None:
        self.where, self.thread, self.since = where, _thread.get_ident(), time.monotonic()


class Session:
    """State of one episode. Tools and judgements run one at a time; `health` never waits for them."""

    def __init__(self, create: Callable[[], Environment], sweep: Callable[[], None] = lambda: None) -> None:
        """`sweep` ends everything that was run on the model's behalf; it raises if something is left."""
        self._environment = create()
        self._sweep = sweep
        self._busy, self._binding = _thread.allocate_lock(), _thread.allocate_lock()
        self._lease: str | None = None
        self._token: str | None = None
        self._deadline: float | None = None
        self._tools: dict[str, Tool] = {}
        self._calls: list[Call] = []
        self._row: dict[str, Any] = {}
        self._agent: Agent | None = None
        self._begun = False
        self._finished = False
        self._running: Running | None = None
        self.answer_for: Callable[[int, HttpError], bool] = lambda thread, refusal: False
        """Answers a request instead of the thread that handles it."""

    def health(self) -> dict[str, Any]:
        """The lease that holds this pod, and its deadline (Unix time)."""
        return {"lease": self._lease, "deadline": self._deadline}

    def bind(self, body: dict[str, Any]) -> None:
        """Give the pod to its one episode. Repeating the same binding is harmless.

        At the deadline, the watchdog of `faulthandler` ends the process. It is written in C, so it works even
        if a tool never releases the interpreter.
        """
        lease, token, deadline = text_in(body, "lease"), text_in(body, "token"), number_in(body, "deadline")
        seconds = number_in(body, "seconds") if "seconds" in body else math.inf
        with self._binding:  # not `_busy`, so that this request never waits for a tool
            if self._lease is None:
                self._lease, self._token, self._deadline = lease, token, deadline
                faulthandler.dump_traceback_later(max(deadline - time.time(), 0.001), exit=True)
                if seconds < MAX_SECONDS:
                    _thread.start_new_thread(self._watch, (seconds,))
            elif not (self._lease == lease and self.knows(token)):
                raise HttpError(409, "LeaseMismatch", f"this sandbox belongs to {self._lease}")

    def prove(self, body: dict[str, Any]) -> dict[str, Any]:
        """Prove to a restarted broker that the job granted this pod's lease."""
        challenge, token = text_in(body, "challenge"), self._token
        if len(challenge) != CHALLENGE or challenge.strip("0123456789abcdef"):
            raise HttpError(400, "MalformedRequest", f"challenge must be {CHALLENGE} hexadecimal digits")
        if token is None:
            raise HttpError(409, "NotLeased", "this sandbox belongs to nobody")
        return {"proof": digest(token.encode(), f"{PROOF_PREFIX}{challenge}".encode(), "sha256").hex()}

    def knows(self, token: str) -> bool:
        """Whether `token` is the lease's token."""
        return self._token is not None and compare_digest(token.encode(), self._token.encode())

    def reset(self, body: dict[str, Any]) -> dict[str, Any]:
        """Enter the first state; returns the messages and tools that the agent sees."""
        row, seed = body.get("row"), body.get("seed")
        if not isinstance(row, dict) or not isinstance(seed, int):
            raise HttpError(400, "MalformedRequest", "reset takes a row (object) and a seed (integer)")
        with self._busy:
            if self._begun:
                raise HttpError(409, "AlreadyReset", "a sandbox serves one episode; lease another")
            self._begun, self._row = True, row
            with self._judging("ResetFailed", "reset", self._environment.reset):
                observation = awaited_result(self._environment.reset(row, seed))
                own = observation.tools is None
                offered = awaited_result(self._environment.tools()) if own else observation.tools
                messages, tools = observation.messages, [tool.spec for tool in offered]
                if len(messages) > bounds.MESSAGES or len(tools) > bounds.TOOLS:
                    text = f"at most {bounds.MESSAGES} messages and {bounds.TOOLS} tools"
                    raise bounds.InvalidReturnError(f"too much: return {text}")
                answer = {"messages": messages, "tools": tools}
                if self._environment.group_reward is not None:
                    answer["grouped"] = True
                if (size := len(bounds.written(answer))) > bounds.ANSWER:
                    raise bounds.InvalidReturnError(f"{size} bytes; return at most {bounds.ANSWER}")
            self._tools = {tool.name: tool for tool in offered}
            return answer

    def call(self, body: dict[str, Any]) -> dict[str, Any]:
        """Carry out one tool call of the model and record it."""
        name, arguments = text_in(body, "name"), body.get("arguments")
        if not isinstance(arguments, dict):
            raise HttpError(400, "MalformedRequest", "a tool call takes a name and arguments (object)")
        with self._busy:
            self._require_open()
            failed = done = False
            called, tool = bounds.shortened(name, bounds.NAME), self._tools.get(name)
            with self._judging("ToolFailed", f"tool {called}", tool and tool.function):
                try:
                    if tool is None:
                        raise ToolError(f"there is no tool {called}; there are: {', '.join(self._tools)}")
                    content, done = tool(arguments)
                except ToolError as error:
                    content, failed = bounds.text(f"error: {error}"[: bounds.CONTENT]), True
            self._calls.append(Call(name, arguments, content, failed))
            return {"content": content, "done": done}

    def start_agent(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start the episode's agent as a program, once; returns its state."""
        command, episode, variables = body.get("command"), body.get("episode"), body.get("environment", {})
        if not is_list_of(command, str) or not command or not isinstance(episode, dict):
            message = "an agent takes a command (list of strings) and an episode (object)"
            raise HttpError(400, "MalformedRequest", message)
        if not isinstance(variables, dict) or not is_list_of([*variables.values()], str):
            raise HttpError(400, "MalformedRequest", "environment must be an object of strings")
        with self._busy:
            self._require_open()
            if self._agent is None:
                from headway_sandbox.agent import start  # other episodes do not pay for its imports

                self._agent = start(command, episode, variables)
            return self._agent.state()

    def wait_for_agent(self, body: dict[str, Any]) -> dict[str, Any]:
        """Wait for the agent's end, at most as long as requested; returns its state then."""
        seconds, agent = number_in(body, "seconds"), self._agent
        if not 0 <= seconds <= MAX_AGENT_WAIT:
            raise HttpError(400, "MalformedRequest", f"seconds must be between 0 and {MAX_AGENT_WAIT}")
        if agent is None:
            raise HttpError(409, "NoAgent", "no agent was started here")
        agent.wait(seconds)
        return agent.state()

    def finish(self, body: dict[str, Any]) -> dict[str, Any]:
        """Judge the episode. Its state does not change, so a repeated request gets the same answer."""
        messages, truncated = body.get("messages"), body.get("truncated")
        if not isinstance(messages, list) or not isinstance(truncated, bool):
            raise HttpError(400, "MalformedRequest", "finish takes messages (list) and truncated (boolean)")
        reported, parts = body.get("reported"), body.get("reported_metrics", {})
        if not (reported is None or (reported and is_list_of(reported, int, float))):
            raise HttpError(400, "MalformedRequest", "reported must be absent or a list of finite numbers")
        if not isinstance(parts, dict) or not is_list_of([*parts.values()], int, float):
            raise HttpError(400, "MalformedRequest", "reported_metrics must be an object of finite numbers")
        turns, judges = body.get("turns", 0), body.get("judges", [])
        if not is_list_of([turns], int) or turns < 0:
            raise HttpError(400, "MalformedRequest", "turns must be a number of turns")
        if not is_list_of(judges, str):
            raise HttpError(400, "MalformedRequest", "judges must be a list of names")
        with self._busy:
            if not self._begun:
                raise HttpError(409, "NotReset", "reset comes first")
            self._finished = True
            try:
                self._sweep()
            except Exception as error:
                raise HttpError(500, "RunnerLost", str(error)) from error
            if self._agent is not None:
                self._agent.wait(END_SECONDS)
            transcript = Transcript(
                messages, tuple(self._calls), truncated, reported, parts, turns, self._row
            )
            with asking(judges):
                with self._judging("RewardFailed", "reward", self._environment.reward):
                    reward = reward_of(awaited_result(self._environment.reward(transcript)), turns)
                with self._judging("RewardFailed", "score", self._environment.score):
                    score = score_of(awaited_result(self._environment.score(transcript)))
        judged = {"reward": reward.value, "score": score, "metrics": reward.metrics}
        return {**judged, "turn_rewards": reward.turns}

    def group(self, body: dict[str, Any]) -> dict[str, Any]:
        """Reward the episodes of a group relative to each other. The pod never has an episode of its own."""
        row, seed, judges = body.get("row"), body.get("seed"), body.get("judges", [])
        if not isinstance(row, dict) or not isinstance(seed, int) or not is_list_of(judges, str):
            raise HttpError(400, "MalformedRequest", "a group takes a row, a seed, episodes and judges")
        transcripts = grouped(body.get("episodes"), row)
        with self._busy:
            if self._begun:
                raise HttpError(409, "AlreadyReset", "a sandbox that had an episode cannot judge a group")
            self._begun = self._finished = True
            method = self._environment.group_reward
            if method is None:
                raise HttpError(409, "NoGroupReward", "the environment has no group_reward")
            with self._judging("ResetFailed", "reset", self._environment.reset):
                awaited_result(self._environment.reset(row, seed))
            with asking(judges), self._judging("RewardFailed", "group_reward", method):
                found = rewards_of(awaited_result(method(transcripts)), [each.turns for each in transcripts])
        judged = [{"reward": r.value, "metrics": r.metrics, "turn_rewards": r.turns} for r in found]
        return {"rewards": judged}

    def questions(self, body: dict[str, Any]) -> dict[str, Any]:
        """New questions of reward and score to judges; none if none comes within the requested seconds."""
        from headway_sandbox.judges import MAX_WAIT, QUESTIONS

        seconds = number_in(body, "seconds")
        if not 0 <= seconds <= MAX_WAIT:
            raise HttpError(400, "MalformedRequest", f"seconds must be between 0 and {MAX_WAIT}")
        return {"questions": QUESTIONS.taken(seconds)}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Deliver a judge's answer to one question."""
        from headway_sandbox.judges import QUESTIONS

        if not is_list_of([body.get("id")], int) or "answer" not in body:
            raise HttpError(400, "MalformedRequest", "an answer takes the id of a question, and the answer")
        if not QUESTIONS.answer(body["id"], body["answer"]):
            raise HttpError(409, "NoQuestion", f"question {body['id']} is not open")
        return {}

    @contextlib.contextmanager
    def _judging(self, reason: str, where: str, method: object) -> Iterator[None]:
        """Context for the environment's own code: its errors and hangs become faults that name the method.

        It also catches what is not an Exception, such as SystemExit. That would end the thread, and the
        client would get no answer.
        """
        self._running = Running(where)
        try:
            yield
        except HttpError:  # it has the environment's own message and field
            raise
        except UnusableReturnError as error:
            raise unusable(error.reason, str(error), method) from error
        except BaseException as error:
            raise fault(reason, where, error, method) from error
        finally:
            self._running = None

    def _watch(self, seconds: float) -> None:
        """Near the end of an episode's time, answer for a method that does not return, and say where it is.

        The method's thread cannot be ended, so this is the sandbox's last answer.
        """
        ends = time.monotonic() + seconds
        time.sleep(seconds * HANG_SHARE)
        while time.monotonic() < ends:
            running = self._running
            late = running is not None and time.monotonic() - running.since > HANG_SECONDS
            if running is not None and late and not awaits_a_judge():
                at = place(stack(sys._current_frames().get(running.thread)) + awaited.waiting_frames())
                message = f"{running.where} has not returned by the end of the episode's time"
                message += f": {at}" if at else ""
                problem = HttpError(504, "EnvironmentHangs", message, field=ENTRYPOINT_FIELD)
                if self.answer_for(running.thread, problem):
                    print(f"EnvironmentHangs: {message}", file=sys.stderr, flush=True)
            time.sleep(WATCH_SECONDS)

    def _require_open(self) -> None:
        if not self._begun or self._finished:
            raise HttpError(409, "EpisodeNotOpen", "tools and agents run between reset and finish")


def asking(judges: list[str]) -> contextlib.AbstractContextManager[None]:
    """Context in which code may ask these judges."""
    if not judges:
        return contextlib.nullcontext()
    from headway_sandbox.judges import QUESTIONS  # other episodes do not pay for its imports

    return QUESTIONS.judging(judges)


def awaits_a_judge() -> bool:
    """Whether a method waits for a judge's answer. Then the environment does not hang."""
    found = sys.modules.get(JUDGES)
    return found is not None and found.QUESTIONS.waiting > 0


def text_in(body: Mapping[str, Any], name: str) -> str:
    """A string member of a request."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise HttpError(400, "MalformedRequest", f"{name} must be a string")
    return value


def is_list_of(value: object, *kinds: type) -> bool:
    """Whether `value` is a list of these types. Numbers must be finite; true and false are not numbers."""
    return isinstance(value, list) and all(
        isinstance(item, kinds)
        and not isinstance(item, bool)
        and (not isinstance(item, float) or math.isfinite(item))
        for item in value
    )


def number_in(body: Mapping[str, Any], name: str) -> float:
    """A number member of a request."""
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not bounds.within(value, math.inf):
        raise HttpError(400, "MalformedRequest", f"{name} must be a number")
    return float(value)
