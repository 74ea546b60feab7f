"""Where the prompts come from."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule
from headway_api.spec.types import Uri, uri_scheme

Format = Literal["parquet", "jsonl", "json", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "jsonl", "json", "csv")


class Dataset(SpecModel):
    """A table with one prompt a row. Every column reaches the environment and its reward."""

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
    """Format of the file. Absent: told by the ending of uri."""
    prompt_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Column that no row may leave empty. Absent: `prompt`, where there is one. The environment is given
    every column, and makes the messages."""

    task_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Column that names the task of a row. Figures are then told by task too."""
    cluster_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Column whose equal values mark rows that are no independent sample, such as questions on one document.
    Confidence intervals allow for that."""

    @property
    def effective_format(self) -> Format:
        """The format given, else the one the file's ending tells."""
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
    """Prompts never trained on, to measure progress with. Needed unless spec.evaluation is switched
    off with everySteps: 0 and atStart: false."""
    test: Dataset | None = None
    """Prompts that nothing is chosen by. After training, the weights of the best validated step (the last
    step without validation) and those from before training are judged on all of them, sampled as
    spec.evaluation says, and compared row by row. The result is in status.test and report.json."""
    allow_overlap: bool = False
    """Train although held-out rows are training rows too. Unless this is true, the preflight refuses rows
    that are equal in every column."""
    task_weights: Annotated[
        dict[Annotated[str, Field(max_length=128)], Weight], Field(max_length=64, default_factory=dict)
    ]
    """Share of training groups that the rows of a task get, relative to the other tasks; a task that is not
    named here has the weight 1, and 0 leaves its rows out. An epoch is as many groups as there are rows.
    Absent: every row comes once an epoch."""
    shuffle: bool = True
    """Visit the training rows in an order drawn from spec.seed, another one each epoch; false keeps
    the file's order."""
