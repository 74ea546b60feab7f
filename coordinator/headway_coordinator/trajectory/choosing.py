"""Chooses how to render a model's template and read its calls: the way with the best proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from headway_coordinator.trajectory.closing import closers
from headway_coordinator.trajectory.grammar import Grammar
from headway_coordinator.trajectory.probe import ASKED, KEY, SIMPLE, WHY, call, calling
from headway_coordinator.trajectory.proof import Proof, Provable, prove
from headway_coordinator.trajectory.template import PLAIN, WAYS, Taken, template_text
from headway_coordinator.trajectory.templated import Template
from headway_coordinator.trajectory.written import Written


class Proved(Provable, Protocol):
    """A renderer that keeps its proof."""

    proof: Proof | None


R = TypeVar("R", bound=Proved)


def ways(
    tokenizer: Any, grammars: Sequence[Grammar], *, asked: bool = False
) -> Iterator[tuple[Template, str]]:
    """A model's template with each grammar whose tags it writes, for each form in which it takes calls.

    Args:
        tokenizer: the model's, with its template.
        grammars: the ones to consider.
        asked: the user named them. The first is offered even if the template writes no call of it.
    """
    for taken in WAYS:
        rendered = partial(template_text, tokenizer, taken=taken)
        try:
            asking = rendered(ASKED, SIMPLE, generate=False)
            calls = rendered([*ASKED, calling(call(KEY))], SIMPLE, generate=False)
            thinking = rendered([*ASKED, calling(call(KEY), reasoning=WHY)], SIMPLE, generate=False)
        except Exception:  # a template raises what its author chose: it does not take calls in this form
            continue
        if taken.reasoning != PLAIN.reasoning and WHY not in thinking:
            continue
        added = calls.removeprefix(asking)
        for grammar in grammars:
            if any(mark in added for mark in grammar.marks):
                yield _template(tokenizer, grammar, taken), grammar.name
    if asked:
        yield _template(tokenizer, grammars[0], PLAIN), grammars[0].name


def _template(tokenizer: Any, grammar: Grammar, taken: Taken) -> Template:
    eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    plain = Template(tokenizer, grammar.name, Written(tokenizer, grammar, eos), taken)
    stops = [*closers(tokenizer, plain.render_text, getattr(grammar, "closing", "")), *eos]
    return Template(tokenizer, grammar.name, Written(tokenizer, grammar, list(dict.fromkeys(stops))), taken)


def best(tokenizer: Any, candidates: Iterable[tuple[R, str]], usual: R | None, name: str = "") -> R:
    """The candidate with the best proof, which it keeps; `usual` if no other has a better one."""
    found = usual
    if usual is not None:
        usual.proof = prove(usual, tokenizer, name)
    for candidate, reader in candidates:
        # Forms with a separate place for reasoning come first. Without them it may seem that the template
        # writes no reasoning.
        elsewhere = getattr(candidate, "taken", PLAIN).reasoning != PLAIN.reasoning
        known = found.proof if found is not None else None
        if found is not None and known is not None and known.whole and (known.reasoning or not elsewhere):
            return found
        candidate.proof = prove(candidate, tokenizer, reader)
        if found is None or candidate.proof.score > (found.proof.score if found.proof else 0):
            found = candidate
    assert found is not None, "there is a candidate, or what is usual"
    return found
