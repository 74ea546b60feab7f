"""Chooses the renderer with the best proof that it writes a model's template and reads its tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from headway_coordinator.trajectory.closing import closers
from headway_coordinator.trajectory.grammar import Grammar
from headway_coordinator.trajectory.probe import ASKED, KEY, SIMPLE, WHY, call, calling
from headway_coordinator.trajectory.proof import Proof, Provable, prove
from headway_coordinator.trajectory.template import CALL_FORMATS, PLAIN, CallFormat, template_text
from headway_coordinator.trajectory.templated import Template
from headway_coordinator.trajectory.written import Written


class Proved(Provable, Protocol):
    """A renderer that keeps its proof."""

    proof: Proof | None


R = TypeVar("R", bound=Proved)


def candidate_renderers(
    tokenizer: Any, grammars: Sequence[Grammar], *, named_by_user: bool = False
) -> Iterator[tuple[Template, str]]:
    """The candidate renderers, each with the name of its grammar: a family's notation for tool calls.

    Each form of calls that the template accepts is combined with each grammar whose tags the template writes
    for that form.

    Args:
        tokenizer: the model's tokenizer, with its chat template.
        grammars: the grammars to consider.
        named_by_user: whether the user named the grammars. If so, the first one is a candidate even if the
            template writes none of its tags.
    """
    for call_format in CALL_FORMATS:
        rendered = partial(template_text, tokenizer, call_format=call_format)
        try:
            asking = rendered(ASKED, SIMPLE, generate=False)
            calls = rendered([*ASKED, calling(call(KEY))], SIMPLE, generate=False)
            thinking = rendered([*ASKED, calling(call(KEY), reasoning=WHY)], SIMPLE, generate=False)
        except Exception:  # a template raises whatever its author chose: it does not accept this form
            continue
        if call_format.reasoning != PLAIN.reasoning and WHY not in thinking:
            continue
        added = calls.removeprefix(asking)
        for grammar in grammars:
            if any(mark in added for mark in grammar.marks):
                yield _template(tokenizer, grammar, call_format), grammar.name
    if named_by_user:
        yield _template(tokenizer, grammars[0], PLAIN), grammars[0].name


def _template(tokenizer: Any, grammar: Grammar, call_format: CallFormat) -> Template:
    eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    plain = Template(tokenizer, grammar.name, Written(tokenizer, grammar, eos), call_format)
    stops = [*closers(tokenizer, plain.render_text, getattr(grammar, "closing", "")), *eos]
    return Template(
        tokenizer, grammar.name, Written(tokenizer, grammar, list(dict.fromkeys(stops))), call_format
    )


def best(tokenizer: Any, candidates: Iterable[tuple[R, str]], usual: R | None, name: str = "") -> R:
    """The candidate with the best proof, or `usual` if no candidate has a better one. Sets its `proof`."""
    found = usual
    if usual is not None:
        usual.proof = prove(usual, tokenizer, name)
    for candidate, reader in candidates:
        # A proof without reasoning is not final while candidates remain that put reasoning into another
        # field: the template may only read reasoning from that field.
        elsewhere = getattr(candidate, "call_format", PLAIN).reasoning != PLAIN.reasoning
        known = found.proof if found is not None else None
        if found is not None and known is not None and known.whole and (known.reasoning or not elsewhere):
            return found
        candidate.proof = prove(candidate, tokenizer, reader)
        if found is None or candidate.proof.score > (found.proof.score if found.proof else 0):
            found = candidate
    assert found is not None, "there is a candidate, or what is usual"
    return found
