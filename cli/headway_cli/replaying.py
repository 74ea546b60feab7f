"""Prepares a replay: reads the run, and changes the spec on request. Formats the replay's result as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from headway_api import names
from headway_api.artifacts import Layout
from headway_api.bounds import OutOfBoundsError, json_within
from headway_api.config import JobConfig
from headway_api.exits import Termination
from headway_api.keys import Key
from headway_api.mistakes import mistakes
from headway_api.record import explained
from headway_api.records import StepReport
from headway_api.remedies import applied
from headway_api.replay import STORE, ReplayRequest, ReplayResult
from headway_api.spec.training import RLTrainingJob, RLTrainingJobSpec
from headway_cli import hub_here
from headway_cli.local.manifest import ManifestError, changed
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun
from headway_cli.where import LocalJob, RunPlace

ALGORITHM: Final = "spec.algorithm."
REPLAYABLE_FIELDS: Final = (
    "loss",
    "ratio",
    "clip",
    "advantage",
    "reduction",
    "correction",
    "correctionCap",
    "correctionFloor",
    "denominator",
    "plugins",
    "updatesPerBatch",
    "kl",
    "entropy",
)
"""Fields of spec.algorithm that say how a batch is trained. Any other field changes which batch is trained,
so a replay of the recorded batch cannot change it."""
SHOWN: Final = (
    "training/loss",
    "training/grad_norm",
    "training/learning_rate",
    "training/entropy",
    "training/mismatch_kl",
    "training/reference_kl",
    "training/ratio_mean",
    "training/ratio_max",
    "training/clip_fraction",
    "training/masked_fraction",
    "training/effective_sample_share",
    "training/updates",
    "training/trainable_token_positions",
    "rollout/advantage/std",
)
"""Metrics that are shown even if they are equal."""
SECONDS: Final = "timing_s/"
"""Prefix of metrics with durations, which are never shown."""
DIGITS: Final = 12
"""Number of first digits that are shown of a SHA-256."""


def config_of(run: StoredRun) -> JobConfig:
    """The configuration of the run's job, as the learner read it.

    Raises:
        RunNotFoundError: the run is an evaluation, or its job.json is missing or of another version.
    """
    if run.evaluates:
        raise RunNotFoundError(f"{run.layout.root} is an evaluation, and has no steps: name a training job")
    if not run.spec:
        raise RunNotFoundError(
            f"{run.layout.job} is missing, so the settings of the run are not known; copy it to its place"
        )
    try:
        return JobConfig.model_validate(run.job)
    except ValidationError as error:
        raise RunNotFoundError(
            f"{run.layout.job} is not one of this version's ({explained(error)}): replay the run with the "
            "version of headway that wrote it"
        ) from error


def recorded_step(reports: Sequence[StepReport], step: int) -> StepReport:
    """The report of a step that the run has recorded.

    Raises:
        RunNotFoundError: the step has no report, or is step 0, the untrained model.
    """
    found = next((report for report in reports if report.step == step), None)
    if found is not None and step > 0:
        return found
    there = [report.step for report in reports if report.step > 0]
    if not there:
        raise RunNotFoundError("--step: the run has taken no step yet")
    why = "is the untrained model" if step == 0 else "is not recorded"
    raise RunNotFoundError(f"--step {step}: step {step} {why}; there are {spans(there)}")


def spans(steps: Iterable[int]) -> str:
    """Step numbers as text with ranges: `1 to 4, 6`."""
    found: list[list[int]] = []
    for step in sorted(steps):
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)


def changed_spec(
    config: JobConfig, report: StepReport, loss: str | None, settings: Sequence[str]
) -> RLTrainingJobSpec | None:
    """The spec with which the replay trains the step; None if nothing is changed.

    It has the settings that were in force at the step, with the requested changes.

    Args:
        config: the run's configuration.
        report: the run's report of the step.
        loss: new value of spec.algorithm.loss. The run's `clip` is then dropped, because its bounds belong to
            the run's loss.
        settings: further changes, as `spec.algorithm.FIELD=VALUE`.

    Raises:
        ManifestError: a setting changes a field that a replay cannot change, or the resulting spec is wrong.
    """
    if loss is None and not settings:
        return None
    if report.directive is not None:
        raise ManifestError(
            f"--loss, --set: step {report.step} is the remedy {report.directive.remedy}, which trains "
            "nothing: name another step"
        )
    for setting in settings:
        path = setting.partition("=")[0]
        if path.removeprefix(ALGORITHM).split(".")[0] not in REPLAYABLE_FIELDS or not path.startswith(
            ALGORITHM
        ):
            raise ManifestError(
                f"--set {setting}: a replay uses the recorded batch, so it cannot change this field; change "
                f"one of these fields of spec.algorithm: {', '.join(REPLAYABLE_FIELDS)}"
            )
    spec = applied(config.spec, report.in_force).as_object()
    if loss is not None:
        kept = {name: value for name, value in spec.get("algorithm", {}).items() if name != "clip"}
        spec["algorithm"] = {**kept, "loss": loss}
    whole = {
        "apiVersion": names.API_VERSION,
        "kind": names.TRAINING_KIND,
        "metadata": {"name": config.name, "namespace": config.namespace, "uid": config.uid},
    }
    made = changed({**whole, "spec": spec}, settings)
    try:
        return RLTrainingJob.model_validate(made).spec
    except ValidationError as error:
        raise ManifestError("; ".join(mistakes(error, RLTrainingJob))) from error


def key_file(place: RunPlace, config: JobConfig) -> Path | None:
    """The file with the key that signs a local job's checkpoints; None if the run is no local job."""
    if not isinstance(place, LocalJob):
        return None
    folder = place.folder / "secrets" / names.keys_secret(config.stem, config.uid)
    found = (folder / name for name in (names.TOKEN_KEY, Key.CHECKPOINTS))
    return next((file for file in found if file.exists()), None)


def failure_message(termination: bytes, request: ReplayRequest, folder: Path) -> str | None:
    """The reason that the learner gave for its failure; None if it gave none.

    Args:
        termination: the learner's termination message.
        request: the replay.
        folder: the replay's folder, through which the learner reads the run. In the message, its path is
            replaced
            by the run's URI.
    """
    try:
        ending = Termination.model_validate(json_within(termination, len(termination)))
    except (OutOfBoundsError, ValidationError):
        return None
    config = request.config
    seen = Layout(f"file://{folder / STORE}", config.namespace, config.name, config.uid)
    said = ending.sentence.replace(seen.root, request.run.uri)
    return hub_here.explained(said, base_option=False)


def report_lines(found: ReplayResult, name: str) -> list[str]:
    """The result of a replay as lines of text. `name` is the job's name."""
    start = "the model itself" if found.start is None else f"the checkpoint of step {found.start}"
    steps = f"step {spans(found.trained)}" if len(found.trained) == 1 else f"steps {spans(found.trained)}"
    many = "" if found.processes == 1 else f", by {found.processes} processes"
    lines = [f"{name}: {steps} trained again from {start}{many}", *_weights(found), ""]
    return [*lines, *_table(found.recorded, found.replayed)]


def _weights(found: ReplayResult) -> list[str]:
    now = f"{found.file} {found.digest[:DIGITS]}"
    if found.first_difference is not None:
        early = [f"step {found.first_difference} is already different: later steps are not those of the run"]
    else:
        early = []
    if found.same:
        return [*early, f"same weights: {now}"]
    if found.same is None:
        return [*early, f"no recorded weights are left for a comparison; the new ones are {now}"]
    was = "not recorded" if found.recorded_digest is None else found.recorded_digest[:DIGITS]
    expected = ", by another algorithm" if found.changed else ""
    lines = [*early, f"other weights{expected}: {now}, recorded {was}"]
    if (difference := found.difference) is None:
        return [*lines, "the run no longer keeps the step's weights, so the difference is not known"]
    count = f"{difference.differing} of {difference.total} tensors differ"
    at = difference.max_at
    furthest = f", by {difference.max_abs:.3g} at most ({at})" if at else ", in their shapes"
    return [*lines, f"{count}{furthest}; the first is {difference.first}"]


def shown_metrics(recorded: Mapping[str, float], replayed: Mapping[str, float]) -> list[str]:
    """Names of the metrics to show: those in `SHOWN`, and others that differ, except for durations."""
    both = [*dict.fromkeys([*SHOWN, *sorted({*recorded, *replayed})])]
    return [
        name
        for name in both
        if not name.startswith(SECONDS)
        and (name in recorded or name in replayed)
        and (name in SHOWN or not _equal(recorded.get(name), replayed.get(name)))
    ]


def _equal(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and math.isclose(one, other, rel_tol=1e-12, abs_tol=0.0)


def _table(recorded: Mapping[str, float], replayed: Mapping[str, float]) -> list[str]:
    rows = [("", "recorded", "replayed")]
    rows += [
        (name, _number(recorded.get(name)), _number(replayed.get(name)))
        for name in shown_metrics(recorded, replayed)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{name:<{widths[0]}}  {was:>{widths[1]}}  {now:>{widths[2]}}" for name, was, now in rows]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.7g}"
