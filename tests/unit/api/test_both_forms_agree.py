"""A rule's CEL and its Python form agree on 10,000 generated objects, and on changes of them.

Every rule of the CRDs and every guard rail is evaluated. RULES_SPECS says how many objects are made, and
RULES_SEED makes others.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from admission import ENVIRONMENT, AdmissionAnswer, Fault, Path, Placed, Server, holds
from evaluation_cases import EVALUATION, TAKEN
from evaluation_cases import REFUSED as EVALUATIONS_REFUSED
from generated_specs import Maker, get, put
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from refusal_cases import EVERYTHING, SMALLEST, TABLE, changed
from warning_cases import QUIET, WARNINGS

from headway_api import crd
from headway_api.document import Json
from headway_api.recipes import GUARD_RAILS
from headway_api.spec.budget import RLBudget
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_cli.local.manifest import frozen

SPECS = int(os.environ.get("RULES_SPECS", "10000"))
SEED = int(os.environ.get("RULES_SEED", "1"))
LEAST = 20 * SPECS // 10000
"""How often each rule must be true, and how often false."""
Job = RLTrainingJob | RLEvalJob | RLBudget
SERVERS = {server.kind: server for server in map(Server, crd.definitions())}
SHARES: dict[type[Job], float] = {RLTrainingJob: 0.55, RLEvalJob: 0.4, RLBudget: 0.05}
"""Share of the objects by kind."""
PARENTS = 250
BREAKERS = 8
BUDGET: Json = {
    "apiVersion": "headway.dev/v1alpha1",
    "kind": "RLBudget",
    "metadata": {"name": "default"},
    "spec": {"usd": "100", "tokens": {"sample": 1000}, "managedBy": "acme.dev/other"},
}
_SETS = [case["set"] for table in TABLE.values() for case in table]
_STARTS = [case["from"] for table in TABLE.values() for case in table if "from" in case]
JOBS = [
    *(SMALLEST, EVERYTHING, QUIET),
    *(changed(SMALLEST, changes) for changes in (*_SETS, *_STARTS)),
    *(changed(QUIET, case["set"]) for case in WARNINGS),
]
EVALUATIONS = [
    changed(EVALUATION, changes) for changes in ({}, *TAKEN, *(case for case, _ in EVALUATIONS_REFUSED))
]
EXAMPLES: dict[type[Job], list[Json]] = {
    RLTrainingJob: JOBS,
    RLEvalJob: EVALUATIONS,
    RLBudget: [changed(BUDGET, changes) for changes in ({}, {"spec": {}}, {"spec.tokens": {}})],
}


def taken_by_models_alone(fault: Fault) -> bool:
    """A number or a boolean that is written as another scalar, which pydantic still reads."""
    return fault.keyword == "type" and isinstance(fault.value, str | int | float)


def of_one_machine(rule: Placed, value: object) -> bool:
    """A file:// URI, which only jobs of one machine may have."""
    return "'s3://'" in rule.cel and isinstance(value, str) and value.startswith("file://")


class Campaign:
    """Sends objects of one kind to an API server and to the model, and notes where they disagree.

    As long as some rules were true or false too rarely, objects are made for those rules. So a new example,
    which changes the draw, does not make another rule too rare.
    """

    def __init__(self, model: type[Job], server: Server, seed: int) -> None:
        self._model, self._server, self._draw = model, server, Random(seed)
        self._maker = Maker(server.schema, [*EXAMPLES[model], *JOBS], self._draw)
        self._parents: list[tuple[Json, AdmissionAnswer, Job]] = []
        self._breakers: dict[Placed, list[Json]] = defaultdict(list)
        rails = GUARD_RAILS if model is RLTrainingJob else ()
        self._rails = [(Placed(server.kind, "", rail.cel, rail.message), rail) for rail in rails]
        self.rules = [*server.rules, *(rule for rule, _ in self._rails)]
        self.held: Counter[Placed] = Counter()
        self.broken: Counter[Placed] = Counter()
        self.messages: Counter[str] = Counter()
        self.accepted = 0
        self.complaints: list[str] = []
        for example in EXAMPLES[model]:
            self.try_one(example, None)

    def run(self, count: int, least: int = LEAST) -> None:
        for made in range(2 * count):
            wanted = [max(0, least - min(self.held[rule], self.broken[rule])) for rule in self.rules]
            if made >= count and not any(wanted):
                return
            weights = wanted if any(wanted) else None
            (rule,) = self._draw.choices(self.rules, weights) if self._draw.random() < 0.9 else (None,)
            parent = self._draw.choice(self._parents)
            known = self._breakers[rule] if rule and self.broken[rule] < least else []
            if known and self._draw.random() < 0.5:
                self.try_one(self._maker.child(self._draw.choice(known), None), None)
            elif rule and rule.is_of_a_change and self._draw.random() < 0.9:
                other = self._draw.choice(self._parents)
                self.try_one(self._maker.grafted(parent[0], other[0], rule), parent)
            else:
                self.try_one(self._maker.child(parent[0], rule), parent)

    def try_one(self, given: Json, parent: tuple[Json, AdmissionAnswer, Job] | None) -> None:
        answer = self._server.create(given)
        for rule, _, held in answer.tried:
            self._count(rule, held)
        broken = {rule for rule, _ in answer.broken}
        if len(broken) == 1 and not answer.faults:
            self._keep(self._breakers[broken.pop()], given, BREAKERS)
        try:
            made = self._model.model_validate(given)
        except ValidationError as error:
            self._refused(answer, error)
            return
        self._taken(answer)
        if answer.accepted:
            self.accepted += 1
            self._keep(self._parents, (given, answer, made), PARENTS)
            if isinstance(made, RLTrainingJob):
                self._warned(given, answer, made)
            if parent is not None:
                self._judge_change(parent[2], made)
                self._judge_change(made, parent[2])

    def _count(self, rule: Placed, held: bool) -> None:
        (self.held if held else self.broken)[rule] += 1

    def _keep(self, kept: list[Any], new: Any, limit: int) -> None:
        if len(kept) < limit:
            kept.append(new)
        else:
            kept[self._draw.randrange(limit)] = new

    def _taken(self, answer: AdmissionAnswer) -> None:
        """The model accepts the object, so the API server must too."""
        faults = [fault for fault in answer.faults if not taken_by_models_alone(fault)]
        broken = [
            (rule.message, at)
            for rule, at in answer.broken
            if not of_one_machine(rule, get(answer.stored, at))
        ]
        if faults or broken:
            self.complaints.append(f"the model takes what the API server refuses: {faults} {broken}")

    def _refused(self, answer: AdmissionAnswer, error: ValidationError) -> None:
        """The model refuses the object, so the API server must refuse it for the same reason."""
        errors = error.errors(include_url=False)
        if answer.accepted:
            self.complaints.append(f"the model refuses what the API server takes: {errors}")
            return
        if answer.faults:
            if answer.broken or all(map(taken_by_models_alone, answer.faults)):
                return  # after a failing rule of an inner block, a model checks no outer rule
            if self._breaks_rules_elsewhere(answer, errors):
                return
            places = {".".join(map(str, entry["loc"])) for entry in errors}
            if not any(_shared(fault, places) for fault in answer.faults):
                self.complaints.append(f"{answer.faults} is elsewhere for the model: {errors}")
            return
        text = "\n".join(entry["msg"] for entry in errors)
        messages = {rule.message for rule in self.rules if rule.message in text}
        broken = [
            (rule, at) for rule, at in answer.broken if not of_one_machine(rule, get(answer.stored, at))
        ]
        expected = {rule.message for rule, _ in broken}
        self.messages.update(messages & expected)
        ruled = [entry["loc"] for entry in errors if entry["type"] == "value_error"]
        if others := [entry for entry in errors if not _follows(entry["loc"], ruled)]:
            self.complaints.append(f"the API server has nothing against {others}")
        if messages - expected:
            self.complaints.append(f"the model alone says {messages - expected}")
        for rule, at in _undisturbed(answer.stored, broken):
            if rule.message not in text:
                value = json.dumps(get(answer.stored, at))[:500]
                self.complaints.append(f"the model does not say of {at}: {rule.message} (it is {value})")

    def _breaks_rules_elsewhere(self, answer: AdmissionAnswer, errors: Sequence[ErrorDetails]) -> bool:
        """Whether each error of the model belongs to a rule that the API server finds broken too.

        If a value has a wrong type, the server evaluates no rule, while the model reads the value and does.
        So the server is asked again without the fields of a wrong type.
        """
        stored = answer.stored
        for fault in filter(taken_by_models_alone, reversed(answer.faults)):
            stored = put(stored, fault.at, None, remove=True)
        broken = {rule.message for rule, _ in self._server.create(stored).broken}
        return all(any(message in entry["msg"] for message in broken) for entry in errors)

    def _warned(self, given: Json, answer: AdmissionAnswer, made: RLTrainingJob) -> None:
        activation = ENVIRONMENT.Activation({"object": answer.stored})
        for rule, rail in self._rails:
            held = holds(rail.cel, activation)
            self._count(rule, held)
            if not held:
                self._keep(self._breakers[rule], given, BREAKERS)
            if held != rail.holds(made.spec):
                self.complaints.append(f"{held} in CEL alone, of {made.spec.as_object()}: {rail.message}")

    def _judge_change(self, before: Job, after: Job) -> None:
        """Compare both as this product writes them: quantities as text, and no empty list.

        The API server may refuse such a change to somebody who writes 1 for "1", or [] for an absent list.
        """
        old, new = (self._server.written(one.as_object()) for one in (before, after))
        wrong = set()
        for rule, held in self._server.change(old, new):
            self._count(rule, held)
            wrong |= set() if held else {rule.message}
        fixed = {path.removesuffix(" or more than it") for path in frozen(before.spec, after.spec)}
        changes = [rule for rule in self.rules if rule.is_of_a_change]
        expected = {rule.message for rule in changes if expected_of(rule, fixed, old, new)}
        if wrong != expected:
            self.complaints.append(f"of a change, in one form alone: {wrong ^ expected}")


def _shared(fault: Fault, places: set[str]) -> bool:
    """Whether a place that the model names equals the place of a fault, contains it, or is inside it."""
    at = ".".join(map(str, fault.at))
    return any(f"{place}.".startswith(f"{at}." if at else "") or at.startswith(place) for place in places)


def _follows(at: Path, ruled: list[Path]) -> bool:
    """Whether an error belongs to a rule, or only says that a list lacks an item which a rule refused."""
    return any(other[: len(at)] == at for other in ruled)


def _undisturbed(stored: Json, broken: list[tuple[Placed, Path]]) -> Iterator[tuple[Placed, Path]]:
    """The broken rules that a model reaches.

    It reaches no rule of a block whose content is wrong, and one rule of a single value.
    """
    seen = set()
    for rule, at in broken:
        below = any(len(other) > len(at) and other[: len(at)] == at for _, other in broken)
        if not below and (isinstance(get(stored, at), dict) or at not in seen):
            yield rule, at
        seen.add(at)


def _differs(path: str, old: Json, new: Json) -> bool:
    steps = path.split(".")
    return bool(get(old, tuple(steps)) != get(new, tuple(steps)))


def expected_of(rule: Placed, fixed: set[str], old: Json, new: Json) -> bool:
    """Whether the models refuse a change by this rule, whose message begins with its field."""
    path = rule.message.split()[0]
    if "may change only while the job is suspended" in rule.message:
        running = not old["spec"]["suspend"] and not new["spec"]["suspend"]
        return running and _differs(path, old, new)
    return path in fixed


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", SHARES, ids=lambda model: model.__name__)
def test_both_forms_of_a_rule_agree(model: type[Job]) -> None:
    campaign = Campaign(model, SERVERS[model.__name__], SEED)
    campaign.run(int(SPECS * SHARES[model]))
    assert not campaign.complaints, "\n".join(campaign.complaints[:20])
    counts = [(campaign.held[rule], campaign.broken[rule], rule) for rule in campaign.rules]
    print(f"{model.__name__}: {campaign.accepted} accepted; true, false, rule:")
    print("\n".join(f"{held:6} {broken:6} {rule.at}: {rule.message}" for held, broken, rule in counts))
    scarce = [count for count in counts if min(count[:2]) < LEAST]
    assert not scarce, (
        f"each rule must hold for {LEAST} objects and break for {LEAST}; write values that keep and break "
        "these into everything.yaml, refusals.yaml or evaluation_cases.py of tests/unit/api/"
    )


DIFFERENT = [
    (RLTrainingJob, "self >= 8", "self >= 7"),
    (RLTrainingJob, "self.updatesPerBatch <= self.batchSize", "self.updatesPerBatch < self.batchSize"),
    (RLTrainingJob, "has(self.model.full) || self.learner", "self.learner"),
    (RLTrainingJob, "self.maxSteps >= oldSelf.maxSteps", "self.maxSteps > oldSelf.maxSteps"),
    (RLTrainingJob, "self.seed == oldSelf.seed", "true || self.seed == oldSelf.seed"),
    (RLEvalJob, "self.suites.exists_one(t, t.name == s.name)", "true"),
    (RLEvalJob, "([.][0-9]*)?|1([.]0*)?)", "([.][0-9]*)?|1)"),
]
"""A rule's CEL, what it is replaced by, and its kind."""


@pytest.mark.ci
@pytest.mark.parametrize(("model", "cel", "other"), DIFFERENT, ids=[cel for _, cel, _ in DIFFERENT])
def test_a_form_that_differs_is_found(model: type[Job], cel: str, other: str) -> None:
    definition = SERVERS[model.__name__].definition
    text = json.dumps(definition)
    assert cel in text
    campaign = Campaign(model, Server(json.loads(text.replace(cel, other))), SEED)
    campaign.rules = [rule for rule in campaign.rules if other in rule.cel]
    campaign.run(400)
    assert campaign.complaints
