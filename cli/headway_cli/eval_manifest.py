"""Makes an RLEvalJob from options, with missing fields from a training job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_api import names
from headway_api.document import Json
from headway_api.spec.candidate import BASE_SUFFIX
from headway_api.spec.rollout import RolloutSpec, ServersSpec
from headway_api.spec.trust import MeasureSpec
from headway_cli.local.manifest import ManifestError

MODELS: Final = ("hf://", "s3://", "file://")
CHECKPOINT: Final = "checkpoint:"
FORMS: Final = "NAME=checkpoint:JOB[:best|latest|STEP], or NAME=hf://ORGANIZATION/MODEL"
TUNED: Final = "tuned"
LONGEST: Final = 40
"""Maximum characters of a candidate's name."""
SHARED: Final = (
    "seed", "agent", "reward", "judges", "output", "priceBook", "serviceAccountName", "imagePullSecrets",
    "tracking", "managedBy",
)  # fmt: skip
"""Blocks of a training job's spec that an evaluation has too, and takes unchanged."""


@dataclass(frozen=True)
class EvalOptions:
    """The options of `headway eval`."""

    name: str | None = None
    job: str | None = None
    models: Sequence[str] = ()
    candidates: Sequence[str] = ()
    data: str | None = None
    baseline: str | None = None
    must_beat: str | None = None
    margin: str | None = None
    max_rows: int | None = None
    environment: str | None = None
    image: str | None = None
    agent_turns: int | None = None


def manifest(asked: EvalOptions, training: Json | None) -> Json:
    """The RLEvalJob that the options describe.

    Args:
        asked: the options.
        training: the training job that supplies fields which the options lack; None if there is none.

    Raises:
        ManifestError: an option is wrong or missing.
    """
    borrowed = borrowed_of(training) if training is not None else {}
    candidates = candidates_of(asked, training)
    spec: Json = {"candidates": candidates, **borrowed}
    if asked.data is not None:
        columns = {key: value for key, value in (spec.get("data") or {}).items() if key.endswith("Column")}
        spec["data"] = {"uri": asked.data, **columns}
    if "data" not in spec:
        raise ManifestError("write --data URI of the rows to measure on")
    environment = {"entrypoint": asked.environment, "image": asked.image}
    spec["environment"] = {**spec.get("environment", {}), **{k: v for k, v in environment.items() if v}}
    if asked.agent_turns is not None:
        spec["agent"] = _with_turns(spec.get("agent") or {}, asked.agent_turns)
    if asked.max_rows is not None:
        spec["evaluation"] = {**spec.get("evaluation", {}), "maxRows": asked.max_rows}
    if asked.baseline is not None:
        spec["baseline"] = asked.baseline
    if gate := gate_of(asked, candidates):
        spec["gate"] = gate
    metadata = {"name": asked.name or _name(asked, training)}
    if training is not None and (namespace := training["metadata"].get("namespace")):
        metadata["namespace"] = namespace
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.EVAL_KIND,
        "metadata": metadata,
        "spec": spec,
    }


def _name(asked: EvalOptions, training: Json | None) -> str:
    """The default name. It differs from the training job's, because a local job's folder has its name."""
    of = asked.job or (training["metadata"]["name"] if training is not None else None)
    return "evaluation" if of is None else f"{of}-eval"


def borrowed_of(training: Json) -> Json:
    """The spec fields that an evaluation takes from a training job.

    These are the blocks in `SHARED`, and environment, rows, servers and settings of the measurement, but not
    budget, deadlines and failure rules. The rows are the test split, or else the validation's. Tokens are
    sampled as in validation.
    """
    spec = training.get("spec") or {}
    found: Json = {key: spec[key] for key in SHARED if key in spec}
    environment = {key: value for key, value in (spec.get("environment") or {}).items() if key != "contract"}
    data = spec.get("data") or {}
    rows = data.get("test") or data.get("validation")
    # An evaluation has no learner, so it needs no Secret for one.
    if (roles := (spec.get("output") or {}).get("roleSecretRefs")) is not None:
        others = {key: value for key, value in roles.items() if key != names.LEARNER}
        found["output"] = {**spec["output"], "roleSecretRefs": others}
    if environment:
        found["environment"] = environment
    if rows:
        found["data"] = dict(rows)
    rollout = _of_model(spec.get("rollout"), ServersSpec)
    if rollout:
        found["rollout"] = rollout
    measured = _of_model(spec.get("evaluation"), MeasureSpec)
    if data.get("test"):
        measured.pop("maxRows", None)  # the training job's limit is for the rows of its validation
    limit = RolloutSpec().sampling.max_tokens
    training_sampling = (spec.get("rollout") or {}).get("sampling") or {}
    sampling = {"maxTokens": training_sampling.get("maxTokens", limit), **(measured.get("sampling") or {})}
    found["evaluation"] = {**measured, "sampling": sampling}
    return found


def _of_model(block: Any, model: type[ServersSpec | MeasureSpec]) -> Json:
    """The fields of a training job's block that `model`, its counterpart of an evaluation, has too."""
    known = {field.alias or name for name, field in model.model_fields.items()}
    return {key: value for key, value in (block or {}).items() if key in known}


def candidates_of(asked: EvalOptions, training: Json | None) -> list[Json]:
    """The candidates, in this order: from --job, from --candidate, from --model.

    Without these options, the training job's best weights and its base model are the candidates.

    Raises:
        ManifestError: an option cannot be read, two candidates have the same name, or there are none.
    """
    found: list[Json] = []
    job = asked.job
    if job is None and training is not None and not asked.candidates and not asked.models:
        job = training["metadata"]["name"]
    if job is not None:
        found.append({"name": TUNED, "checkpoint": {"job": job, "which": "best", "withBase": True}})
    found += [candidate(text) for text in asked.candidates]
    found += [{"name": _named(uri), "model": {"base": _model(uri, "--model")}} for uri in asked.models]
    found = [_as_trained(each, training) for each in found]
    if not found:
        raise ManifestError(f"write what to measure: --job NAME, --model URI, or --candidate {FORMS}")
    _require_apart(found)
    return found


def candidate(text: str) -> Json:
    """The candidate that a value NAME=WHAT of --candidate describes.

    Raises:
        ManifestError: the value has another form.
    """
    name, equals, what = text.partition("=")
    if not equals or not name:
        raise ManifestError(f"--candidate {text}: write {FORMS}")
    if not what.startswith(CHECKPOINT):
        return {"name": name, "model": {"base": _model(what, f"--candidate {name}")}}
    job, _, which = what.removeprefix(CHECKPOINT).partition(":")
    if which not in ("", "best", "latest") and not which.isdecimal():
        raise ManifestError(f"--candidate {text}: after the job write best, latest or a step")
    chosen: Json = {"step": int(which)} if which.isdecimal() else {"which": which or "best"}
    return {"name": name, "checkpoint": {"job": job, **chosen}}


def _as_trained(each: Json, training: Json | None) -> Json:
    """Give a candidate that is the training job's base model that job's settings of the model.

    With the same settings, it can share servers with the trained weights.
    """
    trained = ((training or {}).get("spec") or {}).get("model") or {}
    if "model" not in each or each["model"]["base"] != trained.get("base"):
        return each
    alike = {key: trained[key] for key in ("revision", "dtype", "contextLength") if key in trained}
    return {**each, "model": {**each["model"], **alike}}


def _model(uri: str, option: str) -> str:
    if not uri.startswith(MODELS):
        raise ManifestError(f"{option} {uri}: write {FORMS}")
    return uri


def _named(uri: str) -> str:
    """A candidate's name, made from the model's URI."""
    last = uri.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:LONGEST].strip("-") or "model"


def _require_apart(found: Iterable[Json]) -> None:
    seen: set[str] = set()
    for name in names_of(found):
        if name in seen:
            raise ManifestError(f"two candidates are called {name}: write --candidate OTHER_NAME=...")
        seen.add(name)


def names_of(candidates: Iterable[Json]) -> list[str]:
    """The candidates' names in the results, including base models that `withBase` adds."""
    found = []
    for each in candidates:
        found.append(str(each["name"]))
        if each.get("checkpoint", {}).get("withBase"):
            found.append(f"{each['name']}{BASE_SUFFIX}")
    return found


def gate_of(asked: EvalOptions, candidates: Sequence[Json]) -> Json:
    """The gate that --must-beat and --margin describe; empty without them.

    The gate judges the first candidate other than the one to beat.

    Raises:
        ManifestError: --must-beat names no candidate or the only one, or --margin was written alone.
    """
    if asked.must_beat is None:
        if asked.margin is not None:
            raise ManifestError(
                "--margin says by how much a candidate must be better: write --must-beat NAME"
            )
        return {}
    judged = [name for name in names_of(candidates) if name != asked.must_beat]
    if len(judged) == len(names_of(candidates)) or not judged:
        there = ", ".join(names_of(candidates))
        raise ManifestError(
            f"--must-beat {asked.must_beat}: name one of several candidates; there are {there}"
        )
    gate: Json = {"candidate": judged[0], "mustBeat": asked.must_beat}
    return gate if asked.margin is None else {**gate, "margin": asked.margin}


def _with_turns(agent: Mapping[str, Any], turns: int) -> Json:
    if other := [key for key in ("http", "sandboxed") if agent.get(key)]:
        raise ManifestError(
            f"--agent-turns: spec.agent.{other[0]} has a loop of its own; leave the option out"
        )
    return {**agent, "builtin": {**(agent.get("builtin") or {}), "maxTurns": turns}}
