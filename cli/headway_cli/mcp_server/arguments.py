"""Arguments of the tools. A model reads the descriptions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headway_api.records import Outcome, Purpose
from headway_cli.log_lines import Role
from headway_cli.mcp_server.definition import Arguments

Word = Annotated[str, Field(min_length=1, max_length=1024)]
Words = Annotated[tuple[Word, ...], Field(max_length=32)]
JobKindArgument = Annotated[
    Literal["training", "eval"] | None,
    Field(description="The kind, if a training job and an evaluation on the cluster have the same name."),
]
Job = Annotated[
    Word,
    Field(description="Name of a job, as the tool jobs lists it; or a folder of a run in the project."),
]
File = Annotated[
    Word, Field(description="File with an RLTrainingJob or RLEvalJob, below the project's folder.")
]
Changes = Annotated[
    Words,
    Field(alias="set", description="Fields to change in the file's job first: spec.schedule.maxSteps=3."),
]


class OfJob(Arguments):
    """Arguments of a tool that reads one job."""

    job: Job
    kind: JobKindArgument = None


class OfFile(Arguments):
    """Arguments of a tool that takes a job's file."""

    file: File
    set_: Changes = ()


class JobsAsked(Arguments):
    """Which jobs to list."""

    state: Annotated[
        str | None, Field(max_length=64, description="Jobs in this state, such as Running or Failed.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=200, description="At most this many jobs, the newest first.")] = 50


class StatusAsked(OfJob):
    """Which job's status to read."""

    spec: Annotated[bool, Field(description="Also the job's spec.")] = False


class LogsAsked(OfJob):
    """Which log lines to read."""

    role: Annotated[Role | None, Field(description="Only lines of these processes.")] = None
    tail: Annotated[
        int, Field(ge=1, le=1000, description="Only this many of the last lines of each process.")
    ] = 100


class TrajectoriesAsked(OfJob):
    """Which episodes to read."""

    purpose: Annotated[
        Purpose | None, Field(description="Default: train; for an evaluation, evaluation.")
    ] = None
    step: Annotated[int | None, Field(ge=0, description="Episodes of one step.")] = None
    row: Annotated[int | None, Field(ge=0, description="Episodes of one row of the dataset, from 0.")] = None
    outcome: Annotated[Outcome | None, Field(description="Episodes with this outcome.")] = None
    failed: Annotated[
        bool, Field(description="Episodes that ended with AgentError or InfraError; not with outcome.")
    ] = False
    task: Annotated[
        str | None,
        Field(
            max_length=256, description="Episodes of one task: a value of the data's taskColumn, or a suite."
        ),
    ] = None
    disagree: Annotated[
        bool, Field(description="Episodes whose reward and external score differ, furthest apart first.")
    ] = False
    limit: Annotated[int, Field(ge=1, le=20, description="At most this many episodes.")] = 3
    offset: Annotated[int, Field(ge=0, le=1_000_000, description="Skip this many episodes first.")] = 0
    characters: Annotated[
        int, Field(ge=50, le=20_000, description="Most characters of a message; the rest is cut.")
    ] = 2000


class TimelineAsked(OfJob):
    """Which steps to time."""

    steps: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(max_length=8, description="Steps to show; default: the first, the last and some between."),
    ] = ()


class ReportAsked(OfJob):
    """Which metrics to read."""

    metrics: Annotated[
        Words,
        Field(
            alias="figures",
            description="Names or patterns, such as rollout/reward/*; default: the most important ones.",
        ),
    ] = ()
    last: Annotated[
        int, Field(ge=1, le=200, description="Only this many of the last steps and validations.")
    ] = 20


class CompareAsked(Arguments):
    """Which runs to compare."""

    jobs: Annotated[
        tuple[Job, ...], Field(min_length=2, max_length=8, description="Two to eight training jobs, by name.")
    ]
    points: Annotated[int, Field(ge=2, le=100, description="Most points of a curve, evenly chosen.")] = 12


class CheckAsked(OfFile):
    """How many episodes to play."""

    rows: Annotated[int, Field(ge=1, le=256, description="Training rows that episodes are played on.")] = 16


class EvalAsked(Arguments):
    """An evaluation, with the options of `headway eval`."""

    job: Annotated[
        Word | None,
        Field(description="A training job: its best weights, and the model before training."),
    ] = None
    models: Annotated[Words, Field(description="Unchanged models: hf://ORGANIZATION/NAME.")] = ()
    candidates: Annotated[
        Words,
        Field(description="NAME=checkpoint:JOB[:best|latest|STEP], or NAME= and a model's address."),
    ] = ()
    from_: Annotated[
        Word | None,
        Field(
            alias="from",
            description="File of a training job, for environment, agent, rows and output.",
        ),
    ] = None
    data: Annotated[
        Word | None, Field(description="Address of rows to measure on; default: the job's test split.")
    ] = None
    baseline: Annotated[Word | None, Field(description="Candidate to compare the others with.")] = None
    must_beat: Annotated[
        Word | None,
        Field(description="Candidate that the first other candidate must beat, or the job fails."),
    ] = None
    margin: Annotated[
        Word | None,
        Field(description="With must_beat: the difference must exceed this margin, such as 0.05."),
    ] = None
    max_rows: Annotated[
        int | None, Field(ge=1, description="Measure only this many rows, from the first.")
    ] = None
    environment: Annotated[Word | None, Field(description="Environment's entrypoint: MODULE:CLASS.")] = None
    image: Annotated[Word | None, Field(description="The environment's image.")] = None
    agent_turns: Annotated[int | None, Field(ge=1, description="Most turns of an episode.")] = None
    name: Annotated[Word | None, Field(description="Name of the evaluation; default: JOB-eval.")] = None
