"""Where objects are in the artifact store: `<output.uri>/<namespace>/<name>/<uid>/...`.

    trajectories/train/<group id>.json.gz         the spool: a GroupRecord, durable before delivery
    trajectories/validation/<step>/<group id>.json.gz
    trajectories/evaluation/<candidate>/<group id>.json.gz
    trajectories/preflight/<group id>.json.gz     of the untrained model, before the first gradient
    trajectories/failed/<group key>.json.gz       groups without a scored episode, except training groups
    validations/000012.json                       results of a finished validation, for a restart
    judgements/<sha256>.json                      a judge's answer, by digest of judge and question
    prices/000001.json                            an edition of the price book, and how it changed the bill
    usage/<group key>.jsonl, usage/step-000012.jsonl      immutable ledger segments
    export/cloudevents/2026-11-03.jsonl           usage of a UTC day, as CloudEvents
    export/focus/2026-11-03.csv, .parquet         the same as a FOCUS-style table
    usage/accelerators-000012.jsonl               another segment: accelerator seconds since the last one
    checkpoints/000012/000003/                    resumable, from one start of the learner; report.json last
    weights/000012/                               Hugging Face layout (adapter or full); export.json
                                                  written last if the job's end completed it
    steps/000012.json                             a StepReport: the content of the step
    figures/000012.json                           BatchMetrics of that step, for a restart
    remedies/000001.json                          a Decision to change the running job
    remedies/000001-kept.json                     record that the change stays after its watch
    remedies/orders/<hash>.json                   a person's order that was refused
    preflight/<group id>.json                     answers of the sandboxes of a preflight group, and how fast
    preflight-judgements/<name>.json              questions of preflight scripts to judges, and their cost
    preflight.json                                results of the preflight, written at its end
    preflight.md                                  the same for people
    estimates/<basis>.json                        estimated cost of the whole job, on that basis
    rows.sha256                                   digest of the rows of an RLEvalJob at its start
    chat-templates/<sha256>.jinja                 the base model's chat template, as a training job read it
    coordinators/000001                           empty: a coordinator started
    learners/000003                               empty: a learner started, and resumed
    latest.json                                   pointer to the newest complete checkpoint
    mlflow-run                                    the job's run in MLflow
    mlflow-runs/<candidate>                       the run of one candidate of an RLEvalJob, below it
    job.json                                      the job's identity and spec, as its processes read them
    report.json                                   the job's own summary, written at the end
    report.html                                   the same with curves and episodes, in one file
    report.md                                     the same for people, of an RLEvalJob
    results.parquet                               a row for each candidate, row and try, of an RLEvalJob
    logs/<candidate>.eval                         Inspect logs, of an RLEvalJob
    logs/<pod>/<container>.log                    the end of a process's output

A key is a pure function of the object's content, so writing twice is harmless. Equal jobs share the result of
a preflight, in `<output.uri>/<namespace>/preflight/<key>.json` beside their folders.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Final

from headway_api.bounds import KIB, OutOfBoundsError, json_within

MAX_STEPS: Final = 10**9


@dataclass(frozen=True)
class Layout:
    """Keys of one job below its root URI."""

    output_uri: str
    namespace: str
    name: str
    uid: str

    @property
    def root(self) -> str:
        """URI of everything this job writes."""
        return f"{self.output_uri.rstrip('/')}/{self.namespace}/{self.name}/{self.uid}"

    @property
    def train_groups(self) -> str:
        """Folder of the spool."""
        return f"{self.root}/trajectories/train"

    def train_group(self, group_id: str) -> str:
        """A finished training group."""
        return f"{self.train_groups}/{group_id}.json.gz"

    @property
    def all_validation_groups(self) -> str:
        """Folder of the groups of all validations."""
        return f"{self.root}/trajectories/validation"

    def validation_groups(self, step: int) -> str:
        """Folder of the groups of the validation of `step`."""
        return f"{self.all_validation_groups}/{step:06d}"

    def validation_group(self, step: int, group_id: str) -> str:
        """A finished group of the validation of `step`."""
        return f"{self.validation_groups(step)}/{group_id}.json.gz"

    @property
    def all_evaluation_groups(self) -> str:
        """Folder of the groups of all candidates. For a training job: of the groups of its test split, by
        step."""
        return f"{self.root}/trajectories/evaluation"

    def evaluation_groups(self, candidate: str) -> str:
        """Folder of the groups of one candidate."""
        return f"{self.all_evaluation_groups}/{candidate}"

    def evaluation_group(self, candidate: str, group_id: str) -> str:
        """A finished group of one candidate."""
        return f"{self.evaluation_groups(candidate)}/{group_id}.json.gz"

    @property
    def preflight_groups(self) -> str:
        """Folder of the baseline episodes' groups."""
        return f"{self.root}/trajectories/preflight"

    def preflight_group(self, group_id: str) -> str:
        """A finished group of baseline episodes."""
        return f"{self.preflight_groups}/{group_id}.json.gz"

    def preflight_answers(self, group_id: str) -> str:
        """What the sandboxes of a group of baseline episodes answered, written before the group."""
        return f"{self.root}/preflight/{group_id}.json"

    @property
    def preflight_judgements(self) -> str:
        """Folder of the preflight's questions to judges outside its episodes."""
        return f"{self.root}/preflight-judgements"

    def preflight_judgement(self, whose: str) -> str:
        """Questions to judges of one script, or of one question that the preflight asks twice."""
        return f"{self.preflight_judgements}/{whose}.json"

    @property
    def preflight(self) -> str:
        """Results of the preflight."""
        return f"{self.root}/preflight.json"

    @property
    def preflight_for_people(self) -> str:
        """Results of the preflight, as Markdown."""
        return f"{self.root}/preflight.md"

    @property
    def validations(self) -> str:
        """Folder of the summaries of finished validations."""
        return f"{self.root}/validations"

    def validation(self, step: int) -> str:
        """Summary of the validation of `step`, written after all of its groups and their usage."""
        return f"{self.validations}/{step:06d}.json"

    @property
    def failed_groups(self) -> str:
        """Folder of groups without any scored episode, of all purposes except training."""
        return f"{self.root}/trajectories/failed"

    def failed_group(self, key: str) -> str:
        """A group without any scored episode, by `GroupRecord.key`."""
        return f"{self.failed_groups}/{key}.json.gz"

    def judgement(self, question: str) -> str:
        """A judge's answer, by the digest of judge and question."""
        return f"{self.root}/judgements/{question}.json"

    @property
    def usage(self) -> str:
        """Folder of the ledger's segments."""
        return f"{self.root}/usage"

    def usage_of_group(self, key: str) -> str:
        """Segment with the events of one group's episodes, by `GroupRecord.key`."""
        return f"{self.usage}/{key}.jsonl"

    def usage_of_given_up(self, key: str) -> str:
        """Segment that corrects an earlier one, for a group that was billed and then abandoned."""
        return f"{self.usage}/{key}-given-up.jsonl"

    def usage_of_step(self, step: int) -> str:
        """Segment with the train tokens of one optimizer step."""
        return f"{self.usage}/step-{step:06d}.jsonl"

    def usage_of_accelerators(self, number: int) -> str:
        """Segment with the accelerator seconds since the segment before it."""
        return f"{self.usage}/accelerators-{number:06d}.jsonl"

    def cloud_events(self, day: date) -> str:
        """Usage events of a UTC day, as CloudEvents."""
        return f"{self.root}/export/cloudevents/{day.isoformat()}.jsonl"

    def focus(self, day: date) -> str:
        """The bill of a UTC day as a FOCUS-style table."""
        return f"{self.root}/export/focus/{day.isoformat()}.csv"

    def focus_parquet(self, day: date) -> str:
        """The bill of a UTC day as a FOCUS-style table, for tools that read Parquet."""
        return f"{self.root}/export/focus/{day.isoformat()}.parquet"

    @property
    def prices(self) -> str:
        """Folder of the editions of the price book."""
        return f"{self.root}/prices"

    def price_edition(self, number: int) -> str:
        """Edition `number` of the price book."""
        return f"{self.prices}/{number:06d}.json"

    def estimate(self, basis: str) -> str:
        """Estimate of what the whole job will use and cost, based on its data or its preflight."""
        return f"{self.root}/estimates/{basis}.json"

    @property
    def checkpoints(self) -> str:
        """Folder of resumable checkpoints."""
        return f"{self.root}/checkpoints"

    def checkpoint(self, step: int) -> str:
        """Folder of the checkpoints of a step. Each start of the learner has a subfolder of its own there."""
        return f"{self.checkpoints}/{step:06d}"

    def checkpoint_of(self, step: int, start: int) -> str:
        """A resumable checkpoint, in a folder that no other start of the learner writes to."""
        return f"{self.checkpoint(step)}/{start:06d}"

    def checkpoint_report(self, step: int, start: int) -> str:
        """The record that completes a checkpoint: the StepReport, and the digests of its files."""
        return f"{self.checkpoint_of(step, start)}/report.json"

    @property
    def step_histories(self) -> str:
        """Folder of the reports of all steps."""
        return f"{self.root}/steps"

    def step_history(self, step: int) -> str:
        """The report of one step, written when it is taken and kept permanently."""
        return f"{self.step_histories}/{step:06d}.json"

    @property
    def all_batch_metrics(self) -> str:
        """Folder of the metrics of the batches of all steps."""
        return f"{self.root}/figures"

    def batch_metrics(self, step: int) -> str:
        """Metrics of the batch of one step."""
        return f"{self.all_batch_metrics}/{step:06d}.json"

    @property
    def remedies(self) -> str:
        """Folder of the decisions about the running job."""
        return f"{self.root}/remedies"

    def remedy(self, number: int) -> str:
        """One decision, written before the learner receives it."""
        return f"{self.remedies}/{number:06d}.json"

    def remedy_kept(self, number: int) -> str:
        """Record that the change of a decision stays, written when its watch is over."""
        return f"{self.remedies}/{number:06d}-kept.json"

    def refused_order(self, order: str) -> str:
        """Record that a person's order was refused. Its name is a hash, because anybody may write any
        order."""
        return f"{self.remedies}/orders/{hashlib.sha256(order.encode()).hexdigest()[:32]}.json"

    @property
    def latest(self) -> str:
        """Pointer (a JSON `{"step": n}`) to the newest complete checkpoint, swapped last."""
        return f"{self.root}/latest.json"

    @property
    def rows_digest(self) -> str:
        """SHA-256, in hex, of the rows that an RLEvalJob measures on, written at its first start."""
        return f"{self.root}/rows.sha256"

    @property
    def chat_templates(self) -> str:
        """Folder of the chat templates of a training job: one, unless its base model changed meanwhile."""
        return f"{self.root}/chat-templates"

    def chat_template(self, digest: str) -> str:
        """A chat template, by its SHA-256 in hex."""
        return f"{self.chat_templates}/{digest}.jinja"

    @property
    def coordinator_starts(self) -> str:
        """Folder with an empty object for each start of a coordinator."""
        return f"{self.root}/coordinators"

    def coordinator_start(self, number: int) -> str:
        """The empty object for start `number` of a coordinator."""
        return f"{self.coordinator_starts}/{number:06d}"

    @property
    def learners(self) -> str:
        """Folder with an empty object for each start of the learner."""
        return f"{self.root}/learners"

    def learner(self, start: int) -> str:
        """The empty object for start `start` of the learner."""
        return f"{self.learners}/{start:06d}"

    @property
    def mlflow_run(self) -> str:
        """The MlflowRun that every process of the job logs to."""
        return f"{self.root}/mlflow-run"

    def mlflow_run_of(self, candidate: str) -> str:
        """The MlflowRun of one candidate of an RLEvalJob; `mlflow_run` is then its parent."""
        return f"{self.root}/mlflow-runs/{candidate}"

    @property
    def all_weights(self) -> str:
        """Folder of the published weights of all steps."""
        return f"{self.root}/weights"

    def weights(self, step: int) -> str:
        """Folder of the published weights of one step, in Hugging Face layout or as a delta."""
        return f"{self.all_weights}/{step:06d}"

    @property
    def job(self) -> str:
        """Identity and spec of the job, written by each coordinator when it starts."""
        return f"{self.root}/job.json"

    @property
    def page(self) -> str:
        """The report as one HTML file."""
        return f"{self.root}/report.html"

    @property
    def report(self) -> str:
        """Summary of the finished job."""
        return f"{self.root}/report.json"

    @property
    def report_for_people(self) -> str:
        """Summary of a finished RLEvalJob, as Markdown."""
        return f"{self.root}/report.md"

    @property
    def results(self) -> str:
        """Table of candidate x row x try, of an RLEvalJob."""
        return f"{self.root}/results.parquet"

    @property
    def logs(self) -> str:
        """Folder of logs: of a job's processes, and the Inspect logs of an RLEvalJob."""
        return f"{self.root}/logs"

    def last_log(self, pod: str, container: str) -> str:
        """The end of a process's output."""
        return f"{self.logs}/{pod}/{container}.log"

    def log(self, candidate: str) -> str:
        """The Inspect log of one candidate."""
        return f"{self.logs}/{candidate}.eval"


@dataclass(frozen=True)
class RunLayout(Layout):
    """Keys below a run's folder, if only the folder's address is known."""

    @classmethod
    def of(cls, root: str) -> RunLayout:
        """The layout of the folder at `root`."""
        return cls(root.rstrip("/"), "", "", "")

    @property
    def root(self) -> str:
        return self.output_uri


def shared_preflight(layout: Layout, key: str) -> str:
    """Results of a preflight, beside the folders of all jobs. `key` identifies everything that they depend
    on, so an equal job reads them again."""
    return f"{layout.output_uri.rstrip('/')}/{layout.namespace}/preflight/{key}.json"


def pointed(pointer: bytes) -> int:
    """The step that the pointer to the newest complete checkpoint names.

    Raises:
        OutOfBoundsError: `pointer` is not a JSON object with a valid `step`.
    """
    found = json_within(pointer, KIB)
    step = found.get("step") if isinstance(found, dict) else None
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < MAX_STEPS:
        raise OutOfBoundsError('it holds no {"step": n}')
    return step


_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
GROUPS: Final = re.compile(rf"(?:{_PART}/)*{_PART}\.json\.gz")
SEGMENTS: Final = re.compile(rf"{_PART}\.jsonl")
_HELD: Final = re.compile(r"accelerators-([0-9]{6,18})\.jsonl")
JUDGEMENTS: Final = re.compile(rf"{_PART}\.json")
TEMPLATES: Final = re.compile(r"[0-9a-f]{64}\.jinja")
NUMBERED: Final = re.compile(r"[0-9]{6,18}\.json")
REMEDIES: Final = re.compile(r"[0-9]{6,18}(?:-kept)?\.json|orders/[0-9a-f]{32}\.json")
"""This and the patterns above match the names that a job gives its objects, relative to their folder."""


def accelerators_number(uri: str) -> int:
    """The number of a segment of accelerator seconds; 0 for any other segment."""
    found = _HELD.fullmatch(uri.rpartition("/")[2])
    return int(found[1]) if found is not None else 0


def written(uris: Iterable[str], folder: str, names: re.Pattern[str]) -> list[str]:
    """Objects below a folder whose names match the pattern of the names that a job writes there. Others are
    ignored, such as the object that marks a folder, or a copy that a person made."""
    return [uri for uri in uris if names.fullmatch(uri.removeprefix(folder).lstrip("/"))]


def by_number(uris: Iterable[str], folder: str) -> dict[int, list[str]]:
    """Objects by number, below a folder with a subfolder for each step or start (`<folder>/000012/...`).
    Others are ignored, such as a copy that a person made."""
    found: dict[int, list[str]] = {}
    for uri in uris:
        name, below, _ = uri.removeprefix(folder).lstrip("/").partition("/")
        if below and name.isdecimal() and name == f"{int(name):06d}":
            found.setdefault(int(name), []).append(uri)
    return found
