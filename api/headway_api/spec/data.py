"""Where the prompts come from."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Uri, uri_scheme
from headway_api.rules import Rule

Format = Literal["parquet", "jsonl", "json", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "jsonl", "json", "csv")


class Dataset(SpecModel):
    """A table with one prompt in each row. The environment and its reward receive every column."""

    validations = (
        Rule(
            r"has(self.format) || self.uri.matches('\\.(parquet|jsonl|json|csv)$')",
            "a dataset whose uri does not end in .parquet, .jsonl, .json or .csv needs format",
            lambda self: self.format is not None or self.uri.rpartition(".")[2] in FORMATS,
            "uri",
        ),
    )

    uri: Annotated[Uri, uri_scheme("the uri of a dataset", "s3")]
    """The file, s3://BUCKET/KEY, read with the endpoint and credentials of spec.output."""
    format: Format | None = None
    """Format of the file. Absent: the ending of uri decides."""
    prompt_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Column with the prompt; no row may leave it empty. Absent: `prompt`, if the file has this column. The
    environment receives every column, and makes the messages."""

    task_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Column that names the task of a row. Metrics are then also shown by task."""
    cluster_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Column whose equal values mark dependent rows, such as questions on one document. Confidence intervals
    allow for this dependence."""

    @property
    def effective_format(self) -> Format:
        """The format that the spec gives, otherwise the format that the ending of `uri` names."""
        if self.format is not None:
            return self.format
        ending = self.uri.rpartition(".")[2]
        return next(known for known in FORMATS if known == ending)


Weight = Annotated[float, Field(ge=0, le=1000000)]


class DataSpec(SpecModel):
    """The prompts to train and to measure on."""

    validations = (
        Rule(
            "!has(self.taskWeights) || size(self.taskWeights) == 0 || has(self.train.taskColumn)",
            "spec.data.taskWeights needs spec.data.train.taskColumn, which names the task of a row",
            lambda self: not self.task_weights or self.train.task_column is not None,
            "taskWeights",
        ),
    )

    train: Dataset
    """Prompts to train on."""
    validation: Dataset | None = None
    """Prompts to measure progress with, never trained on. Needed unless spec.evaluation is switched off with
    everySteps: 0 and atStart: false."""
    test: Dataset | None = None
    """Prompts that are never used to choose anything. After training, the job measures two sets of weights on
    all of them, as spec.evaluation says. One set is from the best validated step, or from the last step
    without validation. Training started from the other set. The job compares both row by row. The result is
    in status.test and report.json."""
    allow_overlap: bool = False
    """true trains even if held-out rows are also training rows. false: the preflight refuses rows that are
    equal in every column."""
    task_weights: Annotated[
        dict[Annotated[str, Field(max_length=128)], Weight], Field(max_length=64, default_factory=dict)
    ]
    """Share of training groups that the rows of a task get, relative to other tasks. A task that is not named
    has the weight 1; 0 leaves its rows out. An epoch has as many groups as there are rows. Absent: each epoch
    has every row once."""
    shuffle: bool = True
    """true visits the training rows in an order drawn from spec.seed, another order each epoch. false keeps
    the file's order."""
