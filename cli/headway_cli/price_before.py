"""Estimates the usage and cost of a job in a file, before the job is applied.

The estimate is the same as the first one of the job's coordinator. If this machine lacks something, such as
the model's tokenizer, the range is wider and a note says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headway_analysis.estimate import before, prompts
from headway_analysis.estimate.candidates import Opening, parts_of
from headway_analysis.estimate.made import Made
from headway_analysis.estimate.plan import Plan
from headway_analysis.estimate.prompts import Known
from headway_analysis.estimate.whole import Estimate, Price
from headway_api.config import EvalConfig
from headway_api.families import recipe
from headway_api.prices import PriceBook, Tariff
from headway_api.rows import Row, check_column, load
from headway_api.spec.data import Dataset
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.model import ModelSpec
from headway_api.spec.training import RLTrainingJob, RLTrainingJobSpec
from headway_api.store import LocalStore, Store
from headway_cli import tokens
from headway_cli.candidates import Trained, resolved
from headway_cli.first_prompt import Note, beginning
from headway_cli.local.manifest import ManifestError
from headway_cli.stored_run import readable
from headway_cli.tokens import ModelUnavailableError


@dataclass(frozen=True)
class Here:
    """Folders and functions of this machine that an estimate uses."""

    modules: Path | None
    """Folder of the environment's modules; None to begin no episode and run no code of the environment."""
    cache: Path
    """Folder for downloaded configurations and tokenizers of models in buckets."""
    model: Path | None
    """Folder of a tokenizer to use instead of the job's own; None for the job's own."""
    now: datetime
    note: Note
    """Receives a message about each thing that is not available."""


@dataclass(frozen=True)
class DescribedEstimate:
    """An estimate, and a text about the episodes that the job will play."""

    made: Made
    plays: str


def of_training(job: RLTrainingJob, book: PriceBook, here: Here) -> DescribedEstimate:
    """Estimate a training job.

    Raises:
        ManifestError: neither the job nor its model says how many tokens an episode may have.
        RunNotFoundError: the job's rows cannot be read.
    """
    spec = job.spec
    store = LocalStore(spec.output)
    train = rows_of(spec.data.train, store, "spec.data.train")
    validation = rows_of(spec.data.validation, store, "spec.data.validation")[: spec.evaluation.max_rows]
    test = rows_of(spec.data.test, store, "spec.data.test")
    plan = before.plan_of(spec, train=len(train), validation=len(validation), test=len(test))
    model = _model(spec.model, spec.model.context_length, store, here)
    lengths = [] if model is None else _prompts(spec, model, train, here)
    limit = _longest(spec) if model is None else model.context_length
    found = before.of_training_job(spec, plan, limit, lengths, _price(book, spec.model.base, here.now))
    return DescribedEstimate(_made(found, book, here), plan.why or _in_words(plan))


def _prompts(spec: RLTrainingJobSpec, model: Known, rows: list[Row], here: Here) -> list[float]:
    """Token counts of first prompts; empty if they are not known."""
    if spec.preflight.policy == "Off":  # the job's own first estimate then has no prompts either
        return []
    if (first := beginning(spec, rows[0], here.modules, here.note)) is None:
        return []
    column, system = spec.data.train.prompt_column, spec.agent.effective_builtin.system_prompt
    return prompts.tried(first, model.size, rows, column, system, _failed(here.note))


def of_evaluation(job: RLEvalJob, book: PriceBook, here: Here, trained: Trained) -> DescribedEstimate:
    """Estimate an evaluation.

    Args:
        job: the evaluation.
        book: the price book.
        here: what this machine provides.
        trained: returns the training job of a name that a candidate has.

    Raises:
        ManifestError: a candidate has no weights.
        RunNotFoundError: the job's rows cannot be read.
    """
    spec = job.spec
    store = LocalStore(spec.output)
    rows = _measured_rows(job, store)
    identity = {"name": job.metadata.name, "namespace": job.metadata.namespace, "uid": "", "spec": spec}
    config = EvalConfig.model_validate({**identity, "candidates": resolved(spec, trained)})
    models = _models(config, store, here)
    first = beginning(spec, rows[0], here.modules, here.note)
    if first is None:
        why = before.UNKNOWN_START
        known = {name: Opening(None, model.context_length) for name, model in models.items()}
    else:
        why = prompts.unknown(config, models)
        known = prompts.openings(config, first, models, rows, _failed(here.note))
    parts = parts_of(config, len(rows), known)
    found = before.of_eval_job(config, parts, _price(book, config.model, here.now), why)
    episodes = sum(part.groups * part.group_size for part in parts)
    names = ", ".join(each.name for each in config.candidates)
    return DescribedEstimate(
        _made(found, book, here), f"{episodes} episodes: {len(rows)} rows by each of {names}"
    )


def _measured_rows(job: RLEvalJob, store: Store) -> list[Row]:
    data = job.spec.data
    rows = rows_of(data, store, "spec.data")
    for name, column in (("taskColumn", data.task_column), ("clusterColumn", data.cluster_column)):
        if column is not None:
            with readable(data.uri):
                check_column(rows, column, f"spec.data.{name}")
    return rows[: job.spec.evaluation.max_rows]


def rows_of(dataset: Dataset | None, store: Store, block: str) -> list[Row]:
    """The rows of a dataset; none if the spec has no such dataset.

    Args:
        dataset: the dataset.
        store: the store that has the rows.
        block: path of the dataset in the spec, for errors.

    Raises:
        RunNotFoundError: the rows cannot be read; the message says why, and what to write.
    """
    if dataset is None:
        return []
    with readable(dataset.uri):
        return load(dataset, store, block)


def _models(config: EvalConfig, store: Store, here: Here) -> Mapping[str, Known]:
    """The available models, by candidate. A model that several candidates use is loaded once."""
    known: dict[tuple[str, str | None, int | None], Known | None] = {}
    found: dict[str, Known] = {}
    for each in config.candidates:
        if each.base is None:
            continue
        key = each.base, each.revision, each.context_length
        if key not in known:
            source = ModelSpec(base=each.base, revision=each.revision)
            known[key] = _model(source, each.context_length, store, here)
        if (one := known[key]) is not None:
            found[each.name] = one
    return found


def _model(source: ModelSpec, asked: int | None, store: Store, here: Here) -> Known | None:
    """The tokenizer and context length of a model; None, with a note, if they are not available."""
    try:
        folder = here.model or tokens.folder_of(source, store, here.cache)
        return tokens.known(folder, asked)
    except ModelUnavailableError as error:
        here.note(
            f"the tokenizer of {source.base} is not available, so the limits decide how long a prompt is: "
            f"{error}; write --model FOLDER of one"
        )
        return None


def _longest(spec: RLTrainingJobSpec) -> int:
    """Maximum tokens of an episode: from the spec, or else from the recipe for the model's family.

    Raises:
        ManifestError: the spec does not say it, and no recipe has this model's family.
    """
    if spec.model.context_length is not None:
        return spec.model.context_length
    if (known := recipe(spec.model.base)) is None:
        raise ManifestError(
            "spec.model.contextLength is not given, and the model that names it is not available: write "
            "it, or --model FOLDER of the model's configuration and tokenizer"
        )
    return known.family.context_length


def _price(book: PriceBook, model: str, now: datetime) -> Price:
    tariff, day = Tariff(book, model), now.astimezone(UTC).date()
    return lambda key: tariff.price(key, day)


def _made(found: Estimate, book: PriceBook, here: Here) -> Made:
    return Made.of(found, here.now, book.edition(here.now.astimezone(UTC).date()))


def _failed(note: Note) -> Callable[[Exception], None]:
    return lambda error: note(f"the model's chat template fails, so a prompt may have any length: {error}")


def _in_words(plan: Plan) -> str:
    steps = f"{plan.steps} steps x {plan.batch_size} rows x {plan.group_size}"
    parts = [f"{plan.episodes} training episodes ({steps})"]
    others = {
        "of validation": plan.validation_episodes,
        "of the test split": round(plan.test_episodes.likely),
        "of the preflight": plan.preflight_episodes,
    }
    return ", ".join([*parts, *(f"{many} {what}" for what, many in others.items() if many)])
