"""Building blocks of provocations: specs, and the begin of symptoms.

If something is changed at a step, the symptom begins there. If it emerges by itself, a rule over raw metrics
finds its begin (`rules.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.signals.circumstances import Change, Circumstances, Split, Symptom, World
from tests.signals.demo import quickstart
from tests.signals.rules import REWARD, at_half, collapses, grows, half_risen, idles, reaches, shrinks

from headway_api.signals import SignalName as S

Spec = Mapping[str, Any]
STEPS: Final = 26
"""Steps of most runs: more than ten after the symptom's begin."""
JOB: Final[Spec] = {"algorithm": {"groupSize": 8}, "optimizer": {"learningRate": 2e-3}}
COLLAPSE = "the first step with a mean reward below a quarter of the best before it"
IDLE = "the first of three steps in a row that trained no group"
RISE = "the first step at which the reward, over five steps, has done half of its rise"
RESPONSE = "rollout/tokens/response_mean"
CALLS = "rollout/tool_calls/mean"
AGAIN = "rollout/repetition/mean"
ENTROPY = "training/entropy"


def job(*specs: Spec, **algorithm: Any) -> Spec:
    """The demo's job with these specs merged over it, and a learning rate at which it learns in ten steps."""
    found = quickstart.merged(JOB, {"algorithm": algorithm})
    for spec in specs:
        found = quickstart.merged(found, spec)
    return found


def rate(value: float) -> Spec:
    """A spec with this learning rate."""
    return {"optimizer": {"learningRate": value}}


def strong(alpha: int) -> Spec:
    """An adapter with a large alpha, so that the same step moves the model further than usual."""
    return {"model": {"lora": {"rank": 16, "alpha": alpha}}}


def room(tokens: int, turns: int, context: int = 512) -> Spec:
    """A spec with these limits of tokens, turns and context."""
    return {
        "rollout": {"sampling": {"maxTokens": tokens}},
        "agent": {"builtin": {"maxTurns": turns}},
        "model": {"contextLength": context},
    }


def at(temperature: float) -> Spec:
    """A spec with this temperature."""
    return {"rollout": {"sampling": {"temperature": temperature}}}


TASKS: Final[Spec] = {"data": {"train": {"taskColumn": "task"}, "validation": {"taskColumn": "task"}}}


def run(
    name: str,
    split: Split,
    description: str,
    *symptoms: Symptom,
    spec: Spec | None = None,
    world: World | None = None,
    step: int = 0,
    then: Spec | None = None,
    seed: int = 0,
    steps: int = STEPS,
    **around: Any,
) -> Circumstances:
    """A run. From `step` on, `then` is merged over the spec, and `around` replaces the world."""
    return Circumstances(
        name=name,
        split=split,
        description=description,
        steps=steps,
        seed=seed,
        spec=job() if spec is None else spec,
        world=world or World(),
        later={step: Change(then or {}, around)} if step else {},
        symptoms=symptoms,
    )


def from_step(step: int, why: str, *signals: S) -> tuple[Symptom, ...]:
    """Symptoms that begin at a step, because something is changed there."""
    return tuple(Symptom(signal, step, f"{why} from step {step} on") for signal in signals)


FROM_THE_START = "the run is so from its first step on"


def from_start(*signals: S) -> tuple[Symptom, ...]:
    """Symptoms that are present from the first step on."""
    return tuple(Symptom(signal, 1, FROM_THE_START) for signal in signals)


COLLAPSED = Symptom(S.REWARD_COLLAPSED, collapses, COLLAPSE)
IDLING = Symptom(S.NOTHING_TO_TRAIN, idles, IDLE)


def multiplied(signal: S, name: str, factor: float) -> Symptom:
    """A symptom that begins when a metric reaches `factor` times its normal value."""
    why = f"the first step, after the first eight, with {name} at {factor:g} times their median"
    return Symptom(signal, grows(name, factor), why)


def fallen(signal: S, name: str, factor: float) -> Symptom:
    """A symptom that begins when a metric falls to 1/`factor` of its normal value."""
    why = f"the first of three steps in a row with {name} at 1/{factor:g} of its median of the first eight"
    return Symptom(signal, shrinks(name, factor), why)


def reached(signal: S, name: str, value: float) -> Symptom:
    """A symptom that begins when a metric reaches a value."""
    return Symptom(signal, reaches(name, value), f"the first step with {name} at {value:g} or above")


def grown(signal: S, name: str) -> Symptom:
    """A symptom that begins when a metric reaches half of its highest value."""
    return Symptom(
        signal, at_half(name), f"the first step with {name} at half of the highest that it comes to"
    )


def diverged(signal: S) -> Symptom:
    """A symptom that begins when the reward has completed half of its rise."""
    return Symptom(signal, half_risen(REWARD), RISE)
