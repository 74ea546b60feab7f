"""Makes mistakes to teach the tiny model, so that there is something to improve. Pure.

The right episodes of an environment differ in some words: a tool's name, an argument, a field of the answer.
A *rule* always replaces one of these words with the same wrong word, like somebody who follows last year's
procedure. Rules are chosen so that they apply to a share of the rows only. On the other rows the model is
right from the start. A *slip* is a mistake in one episode: a missing call, calls in the wrong order, a random
call, or a wrong word.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from headway_analysis.preflight.arguments import random_call
from headway_analysis.preflight.evidence import Call
from headway_api.document import JsonView

WORD: Final = re.compile(r"\w+")
FEW: Final = 12
"""Maximum different words at a place for which each word is a case of its own. At a place with more words,
all words with the same last character are one case."""
SLACK: Final = 0.05
"""Maximum difference between the wanted share of rows under a rule and the actual share."""
BY_RULE: Final = 0.6
"""How often an episode under a rule is taught with the rule's mistake, as a share; else it is right."""
SLIPS: Final = 0.1
"""Share of episodes with a slip."""
ANSWER, CALL = "answer", "call"


@dataclass(frozen=True)
class Actions:
    """An agent's calls and answer in an episode."""

    calls: tuple[Call, ...]
    answer: str | None
    """None if a tool ended the episode."""


@dataclass(frozen=True)
class WordPlace:
    """The place of a word in an answer or a call."""

    act: str
    """`answer` or `call`."""
    shape: tuple[str, ...]
    """The text between the words, which is equal in all texts that have this place."""
    word: int
    """Number of the word in the text, from 0."""


Rules = Mapping[WordPlace, Mapping[str, str]]
"""For each place, the wrong word that replaces each right word."""


@dataclass(frozen=True)
class Case:
    """Words at one place, with the wrong words that replace them if a rule has this case."""

    place: WordPlace
    wrong: Mapping[str, str]
    """The wrong word for each right word."""
    episodes: frozenset[int] = field(compare=False)
    """Numbers of the episodes that have one of the right words at this place."""


def spoken(actions: Actions) -> Iterator[tuple[str, str]]:
    """The kind (`call` or `answer`) and text of each call, and of the answer."""
    for call in actions.calls:
        written = {"name": call.name, "arguments": dict(call.arguments)}
        yield CALL, json.dumps(written, ensure_ascii=False)
    if actions.answer is not None:
        yield ANSWER, actions.answer


def words_of(act: str, text: str) -> Iterator[tuple[WordPlace, str]]:
    """The words of a text, each with its place."""
    shape = tuple(WORD.split(text))
    for number, word in enumerate(WORD.findall(text)):
        yield WordPlace(act, shape, number), word


def places(right: Sequence[Actions]) -> dict[WordPlace, Counter[str]]:
    """The places at which right episodes have different words, with the count of each word."""
    found: dict[WordPlace, Counter[str]] = {}
    for actions in right:
        for act, text in spoken(actions):
            for place, word in words_of(act, text):
                found.setdefault(place, Counter())[word] += 1
    return {place: words for place, words in found.items() if len(words) > 1}


def wrong_words(words: Mapping[str, int]) -> dict[str, str]:
    """A wrong word for each right word of a place, given the counts of the right words.

    It is another right word. At a place with many words, a word that ends with a digit gets the next digit.
    """
    listed = sorted(words)
    after = dict(pairwise([*listed, listed[0]]))
    if len(listed) <= FEW:
        return after
    return {
        word: f"{word[:-1]}{(int(word[-1]) + 1) % 10}" if word[-1] in "0123456789" else after[word]
        for word in listed
    }


def cases(right: Sequence[Actions]) -> list[Case]:
    """All cases that rules can use: first those of the answer, then those of places with few words."""
    found = []
    known = places(right)
    having: dict[tuple[WordPlace, str], set[int]] = {}
    for number, actions in enumerate(right):
        for act, text in spoken(actions):
            for place, word in words_of(act, text):
                if place in known:
                    having.setdefault((place, word), set()).add(number)

    def first(place: WordPlace) -> tuple[bool, bool, int]:
        return (place.act != ANSWER, len(known[place]) > FEW, abs(len(known[place]) - 4))

    for place in sorted(known, key=first):
        wrong, groups = wrong_words(known[place]), dict[str, list[str]]()
        for word in sorted(wrong, key=lambda word: (-known[place][word], word)):
            groups.setdefault(word if len(wrong) <= FEW else word[-1], []).append(word)
        for group in groups.values():
            episodes = frozenset().union(*(having[place, word] for word in group))
            found.append(Case(place, {word: wrong[word] for word in group}, episodes))
    return found


def chosen(found: Sequence[Case], episodes: int, share: float) -> tuple[Rules, frozenset[int]]:
    """Rules that apply to about `share` of the episodes, and the numbers of these episodes.

    Args:
        found: the cases to choose from, the preferred ones first.
        episodes: number of all episodes.
        share: wanted share, from 0 to 1.
    """
    rules: dict[WordPlace, dict[str, str]] = {}
    under: frozenset[int] = frozenset()
    for case in found:
        if len(under) >= (share - SLACK) * episodes:
            break
        more = under | case.episodes
        if under < more and len(more) <= (share + SLACK) * episodes:
            rules.setdefault(case.place, {}).update(case.wrong)
            under = more
    return rules, under


def changed(actions: Actions, rules: Rules) -> Actions:
    """The actions after the rules have replaced right words with wrong ones."""

    def replaced(act: str, text: str) -> str:
        parts = list(WORD.split(text))
        words = [rules.get(place, {}).get(word, word) for place, word in words_of(act, text)]
        return "".join(part + word for part, word in zip(parts, [*words, ""], strict=True))

    calls = []
    for (act, text), call in zip(spoken(replace(actions, answer=None)), actions.calls, strict=True):
        calls.append(_read(replaced(act, text), call))
    answer = None if actions.answer is None else replaced(ANSWER, actions.answer)
    return Actions(tuple(calls), answer)


def _read(text: str, otherwise: Call) -> Call:
    """The call in a text. Returns `otherwise` if the text is no longer JSON: the replaced word was part of an
    escape sequence."""
    try:
        found = json.loads(text)
    except ValueError:
        return otherwise
    return Call(found["name"], found["arguments"])


def slipped(actions: Actions, tools: Sequence[JsonView], known: Rules, drawn: random.Random) -> Actions:
    """The actions with a random slip: possibly a wrong call, and a wrong word if one is known.

    The wrong word is in the answer, or without an answer in a call.

    Args:
        actions: the right actions.
        tools: the tools of the episode.
        known: for each place, a wrong word for each right word.
        drawn: source of random draws.
    """
    calls = list(actions.calls)
    if calls and drawn.random() < 0.5:
        at = drawn.randrange(len(calls))
        kind = drawn.choice(["left out", "order", "random"])
        if kind == "left out" or (kind == "random" and not tools):
            del calls[at]
        elif kind == "order" and len(calls) > 1:
            at = min(at, len(calls) - 2)
            calls[at], calls[at + 1] = calls[at + 1], calls[at]
        else:
            calls[at] = random_call(drawn.choice(list(tools)), drawn) if tools else calls[at]
    made = Actions(tuple(calls), actions.answer)
    if not calls and made.answer is None:  # an episode needs a call or an answer
        return actions
    last = [*spoken(made)][-1:] if made.answer is not None else [*spoken(made)]
    there = [
        place for act, text in last for place, word in words_of(act, text) if word in known.get(place, {})
    ]
    if not there:
        return made
    place = drawn.choice(there)
    return changed(made, {place: known[place]})
