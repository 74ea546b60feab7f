"""The gateway: answers one turn, tokens in and tokens out, and records it in the episode's graph.

Every agent's turns pass through `Gateway`. The built-in agent calls it in process. Other agents reach it
through `server.py`, which only translates. Several turns of one episode may run at once, for an agent with
helpers. Each such turn is a branch of the graph.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol

from headway_api.bounds import shortened
from headway_api.records import Turn
from headway_api.seeds import seed
from headway_coordinator.engines.vllm import Request, Sampled
from headway_coordinator.gateway import drift, efforts, stops, texts
from headway_coordinator.gateway.adjacent import Adjacent
from headway_coordinator.gateway.asks import (
    Ask,
    Completion,
    ContextFullError,
    ForcedCallError,
    RenderError,
    Scored,
    Session,
)
from headway_coordinator.gateway.conversations import RecordedTurn, continued, meaning
from headway_coordinator.gateway.participants import Participants
from headway_coordinator.trajectory.call_ids import identified
from headway_coordinator.trajectory.calls import Call, Message, Parsed, kinds
from headway_coordinator.trajectory.lengths import Extent, content, extent
from headway_coordinator.trajectory.probe import ANSWER, ASKED
from headway_coordinator.trajectory.render import Renderer

INLINE_CHARACTERS = 16 * 1024
"""Bytes of the largest conversation that is rendered on the event loop, in some 20 ms. A thread renders
larger ones, so that other episodes need not wait."""
INLINE_TOKENS = 4_000
"""The most tokens that are decoded one by one on the event loop, in some 20 ms."""
COUNTED, COUNTED_TOKENS = 4, 262_144
"""The most contexts and tokens of a conversation that `count` measures beyond one context. Agents count to
find out how much to leave out."""
BYTES_A_TOKEN = 4
"""A conversation is large if it has more than this many bytes for each token of the context. The tokens of a
large conversation are counted before it is rendered."""


class Engine(Protocol):
    """Samples tokens: the fleet of rollout servers."""

    async def generate(self, session: str, request: Request, timeout: float) -> Sampled: ...


class Gateway:
    """Answers turns with an engine that works with token ids."""

    def __init__(self, renderer: Renderer, engine: Engine, context_length: int, timeout: float) -> None:
        self._renderer = renderer
        self._adjacent = Adjacent(renderer)
        self._participants = Participants(renderer)
        self._engine = engine
        self._context_length = context_length
        self._timeout = timeout
        self._longest_token = renderer.longest_token
        self._efforts = efforts.Efforts(renderer)
        self._large = asyncio.Lock()
        """Held while a large conversation is counted or rendered, so that this happens to one at a time; see
        `BYTES_A_TOKEN`."""

    async def chat(self, session: Session, ask: Ask) -> Completion:
        """Sample the next assistant message.

        Raises:
            NoTokensLeftError: the context is full, or the episode has reached its limit of tokens.
            ForcedCallError: `ask.force` is impossible for this model.
            RenderError: the chat template does not accept this conversation.
            UnknownEffortError: the chat template does not know `ask.effort`.
            SchemaRefusedError: the engine does not accept `ask.schema`.
            GatewayError: `ask.text` has a token that this model does not have, or a string of `ask.stop` is
                part of the family's markup.
            InfraError: the engine failed.
        """
        if ask.text is not None:
            return await self._continue(session, ask, ask.text)
        if ask.stop:
            stops.require_text(ask.stop, self._markup)
        session.ignore(self._participants.unshown(ask.messages))
        ask = self._accepted(ask)
        if ask.effort is not None and not ask.must_think and not self._efforts.knows(ask.effort):
            if ask.effort != "on":  # a model whose template has no switch thinks in any case
                session.ignore([ask.effort_at])
            ask = replace(ask, effort=None)
        renderer = self._efforts.of(ask.effort)
        await self._require_room(ask, self._context_length)
        meanings, before = await self._continued(session, ask)
        session.read(before)
        forced = self._forced(renderer, ask)
        number, session.begun = session.begun, session.begun + 1
        with session.clock.timed("turn", str(number)):
            prompt = await self._tokens(ask, before, self._context_length) + forced
            sampled = await self._sample(session, ask, number, prompt)
            found = self._record(session, ask, meanings, before, number, prompt, forced, sampled)
            return await self._with_logprobs(session, found) if ask.logprobs else found

    async def _sample(self, session: Session, ask: Ask, number: int, prompt: list[int]) -> Sampled:
        room = self._context_length - len(prompt)
        if room < 1:
            raise ContextFullError(f"{len(prompt)} tokens fill the context of {self._context_length}")
        wanted = min(room, session.sampling.max_tokens, ask.max_tokens or room)
        with session.whole.turn(len(prompt), wanted) as whole:
            async with session.allowance.reserved(whole.tokens) as reservation:
                request = self._request(session, ask, number, prompt, reservation.tokens)
                sampled = await self._engine.generate(session.episode_id, request, self._timeout)
                whole.used = reservation.used = len(sampled.tokens)
        return sampled

    def _request(self, session: Session, ask: Ask, number: int, prompt: list[int], tokens: int) -> Request:
        return Request(
            prompt=prompt,
            max_tokens=tokens,
            temperature=session.sampling.temperature,
            top_p=session.sampling.top_p,
            seed=seed(session.seed, number),
            stop_token_ids=self._renderer.stop_token_ids,
            stop=ask.stop,
            schema=ask.schema,
        )

    async def count(self, session: Session, ask: Ask) -> int:
        """The number of tokens in a turn's prompt. Nothing is sampled or recorded.

        Raises:
            ContextFullError, ForcedCallError, RenderError, UnknownEffortError: as in `chat`.
        """
        ask = self._accepted(ask)
        if not ask.must_think and ask.effort is not None and not self._efforts.knows(ask.effort):
            ask = replace(ask, effort=None)
        renderer = self._efforts.of(ask.effort)
        context = self._context_length
        await self._require_room(ask, max(context, min(COUNTED * context, COUNTED_TOKENS)))
        _, before = await self._continued(session, ask)
        return len(await self._tokens(ask, before)) + len(self._forced(renderer, ask))

    def _forced(self, renderer: Renderer, ask: Ask) -> list[int]:
        """The tokens that the gateway writes at the beginning of the model's turn, before sampling."""
        if ask.force is None:
            return [] if ask.schema is None else renderer.without_reasoning()
        tokens = renderer.force(ask.force.tool)
        if tokens is None:
            raise ForcedCallError(f"{self._renderer.name} cannot begin a tool call for the model")
        return tokens

    def _accepted(self, ask: Ask) -> Ask:
        messages = self._adjacent.accepted(ask.messages)
        return ask if messages is ask.messages else replace(ask, messages=messages)

    async def _continued(self, session: Session, ask: Ask) -> tuple[list[object], RecordedTurn | None]:
        """The meaning of each message, and the recorded conversation that the messages continue."""
        recorded, unseen = list(session.recorded_turns), frozenset(session.unseen)

        def found() -> tuple[list[object], RecordedTurn | None]:
            meanings = [*map(meaning, ask.messages)]
            return meanings, continued(recorded, ask.messages, meanings, ask.tools, unseen)

        return await asyncio.to_thread(found) if ask.size > INLINE_CHARACTERS else found()

    def _is_large(self, ask: Ask) -> bool:
        return ask.size > BYTES_A_TOKEN * self._context_length

    async def _require_room(self, ask: Ask, limit: int) -> None:
        """Refuse a conversation of more than `limit` tokens, before it is encoded as a whole.

        To encode it would take many times its memory. Every template shows the text of users and tools in
        full. So a quick lower bound on the tokens of that text refuses most such conversations. For other
        large ones, the rendered text is encoded slice by slice, until its tokens exceed the limit.
        """
        if not self._is_large(ask):
            if not self._surely_fits(ask):
                self._require_words(ask.messages, limit)
            return
        async with self._large:
            await asyncio.to_thread(self._require_words, ask.messages, limit)
            if await asyncio.to_thread(self._renderer.exceeds, ask.messages, ask.tools, limit):
                raise self._full(f"more than {limit}")

    def _full(self, tokens: str) -> ContextFullError:
        return ContextFullError(f"{tokens} tokens fill the context of {self._context_length}")

    def _surely_fits(self, ask: Ask) -> bool:
        """Whether a request of this size passes `_require_words`, whatever its words are.

        If so, its words need not be counted.
        """
        longest = self._longest_token
        limit = Extent(letters=ask.size, words=(ask.size + len(ask.messages)) // 2)
        return longest is None or limit.tokens(longest) <= self._context_length

    def _require_words(self, messages: Sequence[Message], limit: int) -> None:
        if self._longest_token is None:
            return
        length = extent(content(message) for message in messages if message.get("role") in ("user", "tool"))
        if (least := length.tokens(self._longest_token)) > limit:
            raise self._full(f"at least {least}")

    @cached_property
    def _closes(self) -> bool:
        """Whether the family closes turns with a token. If so, a turn that a stop string ended can go on."""
        return stops.closer(self._renderer, [ASKED[-1], ANSWER], ()) is not None

    @cached_property
    def _markup(self) -> tuple[str, ...]:
        """Tags and words of the family's markup. A stop string must not be a part of any of them."""
        return stops.markup(self._renderer)

    async def _tokens(self, ask: Ask, before: RecordedTurn | None, limit: int | None = None) -> list[int]:
        """The ids of a prompt of fewer than `limit` tokens.

        A longer list stays in its thread. To free millions of ids takes a tenth of a second.
        """

        def found() -> list[int]:
            ids = self._rendered(ask, before)
            if limit is not None and len(ids) >= limit:
                raise ContextFullError(f"{len(ids)} tokens fill the context of {limit}")
            return ids

        try:
            if ask.size > INLINE_CHARACTERS:
                async with self._large if self._is_large(ask) else nullcontext():
                    return await asyncio.to_thread(found)
            return found()
        except ContextFullError:
            raise
        except Exception as error:  # a template raises whatever its author chose
            why = shortened(str(error), 500)
            raise RenderError(f"the chat template does not accept this conversation: {why}") from error

    def _rendered(self, ask: Ask, before: RecordedTurn | None) -> list[int]:
        """The prompt's token ids: those of the recorded turn that `ask` continues, extended by new messages.

        If `ask` continues no recorded turn, or the template cannot extend it, the whole conversation is
        rendered.
        """
        renderer = self._efforts.of(ask.effort)
        if before is not None:
            new, sampled = ask.messages[before.length :], before.sampled
            if before.stopped is not None:
                behind = before.written_behind(ask.messages[before.length - 1])
                sampled += renderer.encode(behind, whole=False) if behind else []
                closed = stops.closer(renderer, before.messages, ask.tools)
                sampled += [] if closed is None else [closed]
            extended = renderer.extend(before.prompt, sampled, before.messages, new, ask.tools)
            if extended is not None and self._same_words(before, ask):
                return extended
        return renderer.render(ask.messages, ask.tools)

    def _same_words(self, before: RecordedTurn, ask: Ask) -> bool:
        """Whether the earlier messages render to the same text with the effort of this request."""
        if before.effort == ask.effort:
            return True
        then, now = self._efforts.of(before.effort), self._efforts.of(ask.effort)
        history, tools = before.messages, ask.tools
        return then.render_text(history, tools, generate=False) == now.render_text(
            history, tools, generate=False
        )

    def _record(
        self,
        session: Session,
        ask: Ask,
        meanings: list[object],
        before: RecordedTurn | None,
        number: int,
        prompt: list[int],
        forced: list[int],
        sampled: Sampled,
    ) -> Completion:
        """Parse a turn's tokens, and add the turn to the graph. If the turn forks, count that.

        Forks are counted here, because other turns may have been recorded while this one was sampled.
        """
        rendered = prompt[: len(prompt) - len(forced)]
        if session.forks_at(rendered, (one.node for one in session.recorded_turns)):
            cause = _drift(session, ask, meanings, before, rendered, self._closes)
            session.drifted(cause, number, ask.messages)
        sampled, stopped = stops.ended(self._renderer.text, sampled, ask.stop, self._renderer.stop_token_ids)
        parsed = self._efforts.of(ask.effort).parse([*forced, *sampled.tokens], rendered, ask.tools)
        parsed = identified(parsed, number, ask.messages)
        message = stops.without(assistant(parsed, ask.may_call), stopped)
        turn = _turn(session, ask, prompt, sampled, parsed.calls)
        end = session.graph.place(prompt)
        node = session.graph.add_sampled(end, sampled.tokens, sampled.logprobs, sampled.versions)
        known = before.length if before else 0
        behind = before.written_behind(ask.messages[known - 1]) if before else None
        tail = self._renderer.text(sampled.tokens).partition(stopped)[2] if stopped else ""
        new, new_meanings = [*ask.messages[known:], message], [*meanings[known:], meaning(message)]
        recorded = RecordedTurn(
            session.graph, node, before, new, new_meanings, ask.tools,
            stopped=stopped, tail=tail, behind=behind or "", effort=ask.effort,
        )  # fmt: skip
        session.recorded_turns.append(recorded)
        session.recorded(turn, node)
        called = "tool_calls" in message and sampled.finish_reason == "stop"
        finish = "tool_calls" if called else sampled.finish_reason
        return Completion(number, message, parsed.calls, finish, turn, node, stopped)

    async def _continue(self, session: Session, ask: Ask, given: str | tuple[int, ...]) -> Completion:
        """Sample the continuation of a text."""
        renderer, limit = self._renderer, self._context_length
        long = len(given) > INLINE_CHARACTERS
        if isinstance(given, str):
            words: list[Message] = [{"role": "user", "content": given}]
            async with self._large if long else nullcontext():
                if not long:
                    self._require_words(words, limit)
                elif await asyncio.to_thread(self._too_long, words, given):
                    raise ContextFullError(f"more than {limit} tokens fill the context of {limit}")
        elif len(given) >= limit:
            raise ContextFullError(f"{len(given)} tokens fill the context of {limit}")
        recorded, number, session.begun = list(session.texts), session.begun, session.begun + 1
        place = partial(texts.placed, renderer, session.graph, recorded, given, frozenset(session.unseen))
        found = await asyncio.to_thread(place) if long else place()
        session.seen(found.seen)
        with session.clock.timed("turn", str(number)):
            sampled = await self._sample(session, ask, number, found.tokens)
            completion = self._record_text(session, ask, found, number, sampled)
            return await self._with_logprobs(session, completion) if ask.logprobs else completion

    def _too_long(self, words: Sequence[Message], given: str) -> bool:
        self._require_words(words, self._context_length)
        return self._renderer.longer(given, self._context_length)

    def _record_text(
        self, session: Session, ask: Ask, found: texts.Prompt, number: int, sampled: Sampled
    ) -> Completion:
        renderer = self._renderer
        if session.forks_at(found.tokens, session.nodes):
            session.drifted(drift.ForkCause(texts.reason(session.texts, found.text)), number, [])
        sampled, stopped = stops.ended(renderer.text, sampled, ask.stop, renderer.stop_token_ids)
        ended = stopped is None and sampled.tokens[-1] in renderer.stop_token_ids
        words = sampled.tokens[:-1] if ended else sampled.tokens
        whole = texts.answer(renderer, found.tokens, words)
        answer_text = whole.partition(stopped)[0] if stopped else whole
        turn = _turn(session, ask, found.tokens, sampled)
        end = session.graph.place(found.tokens)
        node = session.graph.add_sampled(end, sampled.tokens, sampled.logprobs, sampled.versions)
        added = found.text[found.before.length :] if found.before is not None else found.text
        ends = ended or not words
        session.texts.append(texts.Continued(node, found.before, added, whole, len(answer_text), ends))
        session.recorded(turn, node)
        message: Message = {"role": "assistant", "content": answer_text}
        prompt: list[Message] = [{"role": "user", "content": found.text}]
        return Completion(
            number, message, [], sampled.finish_reason, turn, node, stopped, conversation=prompt
        )

    async def _with_logprobs(self, session: Session, found: Completion) -> Completion:
        """The turn with the text and the log-probability of each sampled token."""
        node = session.graph.nodes[found.node]

        def scored() -> tuple[Scored, ...]:
            texts = {token: self._renderer.text([token]) for token in set(node.tokens)}
            pairs = zip(node.tokens, node.logprobs, strict=True)
            return tuple(Scored(texts[token], logprob) for token, logprob in pairs)

        long = len(node.tokens) > INLINE_TOKENS
        return replace(found, scored=await asyncio.to_thread(scored) if long else scored())


def _turn(
    session: Session, ask: Ask, prompt: Sequence[int], sampled: Sampled, calls: Sequence[Call] = ()
) -> Turn:
    """A turn's usage."""
    return Turn(
        index=len(session.turns),
        prompt_tokens=len(prompt),
        cached_tokens=min(sampled.cached_tokens, len(prompt)),
        sampled_tokens=len(sampled.tokens),
        finish_reason=sampled.finish_reason,
        malformed_tool_calls=sum(call.problem is not None for call in calls),
        malformed_kinds=kinds(calls),
        policy_version=min(span.version for span in sampled.versions),
        guided=ask.schema is not None,
    )


def _drift(
    session: Session,
    ask: Ask,
    meanings: Sequence[object],
    before: RecordedTurn | None,
    prompt: Sequence[int],
    closes: bool,
) -> drift.ForkCause:
    """Why a turn forks: why its prompt does not continue the tokens that were sampled."""
    if before is not None:
        sampled = [*before.prompt, *before.sampled]
        if list(prompt[: len(sampled)]) != sampled:
            if before.effort != ask.effort:
                return drift.ForkCause("system")
            turn = session.turns[session.nodes.index(before.node)]
            unclosed = before.stopped is not None and not closes
            return drift.rendered(before, turn.finish_reason == "length" or unclosed)
    return drift.reason(session.recorded_turns, meanings, ask.tools, session.lost)


def assistant(parsed: Parsed, may_call: bool) -> Message:
    """A parsed turn as an assistant message in OpenAI's form. Its calls must have ids already."""
    good = [call for call in parsed.calls if may_call and call.problem is None]
    content = parsed.content
    for call in parsed.calls:
        in_reasoning = call.written in (parsed.reasoning or "")
        if (not may_call or call.problem is not None) and not in_reasoning:
            content = f"{content}\n{call.written}".strip()
    message: Message = {"role": "assistant", "content": content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if good:
        message["tool_calls"] = [*map(_openai, good)]
    return message


def _openai(call: Call) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
