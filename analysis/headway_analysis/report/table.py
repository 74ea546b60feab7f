"""`results.parquet`: one row for each candidate, dataset row and try.

Every number of `report.json` can be computed from this table, with the prices and the settings that the
report itself has.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from headway_analysis.measures.catalogue import Price
from headway_analysis.measures.tries import Try
from headway_api.prices import class_of, whose

if TYPE_CHECKING:
    import pyarrow as pa

ColumnKind = Literal["string", "int64", "double", "bool", "counts", "numbers", "usage"]
"""How a column is stored; `counts` and `numbers` are maps by name, `usage` is a list of structs."""
VERSION: Final = "1"
"""The columns' version. A column may be added under the same version; none is renamed or removed."""


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    name: str
    kind: ColumnKind
    meaning: str
    value: Callable[[Try], Any]


def _suite(each: Try) -> bool:
    return each.place.suite


COLUMNS: Final = (
    Column("candidate", "string", "Name of the candidate.", lambda t: t.place.candidate),
    Column("task", "string", "The row's task; empty if no column names tasks.", lambda t: t.place.task),
    Column("suite", "bool", "A sample of a suite: its task is the suite, and it is not in `all`.", _suite),
    Column(
        "row", "int64", "Index of the dataset row, from 0; then samples of suites.", lambda t: t.place.row
    ),
    Column("row_id", "string", "Name of a suite's sample; empty for a row.", lambda t: t.place.row_id),
    Column("cluster", "string", "Cluster that statistics put the row in.", lambda t: t.cluster),
    Column("try", "int64", "Which try at the row, from 0.", lambda t: t.index),
    Column("episode_id", "string", "Id of the episode in the trajectories.", lambda t: t.episode_id),
    Column("sampled_by", "string", "servers, endpoint, or nobody (rescored).", lambda t: t.sampled_by),
    Column("outcome", "string", "Completed, Truncated, AgentError, InfraError.", lambda t: t.outcome.value),
    Column("scored", "bool", "Whether it counts in means: not after an InfraError.", lambda t: t.scored),
    Column("reward", "double", "Reward; null where not scored.", lambda t: t.reward),
    Column(
        "external_score", "double", "The strict score; null where not scored.", lambda t: t.external_score
    ),
    Column("success", "bool", "external_score reaches the threshold.", lambda t: t.success),
    Column("success_by_reward", "bool", "reward reaches the threshold.", lambda t: t.success_by_reward),
    Column("completion", "double", "1 where an answer was emitted.", lambda t: float(t.completion)),
    Column("format", "double", "The environment's metric of this name, or null.", lambda t: t.format),
    Column("turns", "int64", "Model calls.", lambda t: t.turns),
    Column("prompt_tokens", "int64", "Prompt tokens that were computed.", lambda t: t.prompt_tokens),
    Column("cached_tokens", "int64", "Prompt tokens found in the cache.", lambda t: t.cached_tokens),
    Column("sampled_tokens", "int64", "Tokens that were sampled.", lambda t: t.sampled_tokens),
    Column(
        "discarded_tokens",
        "int64",
        "Tokens spent on lost attempts, and on turns that never reached the agent.",
        lambda t: t.discarded_tokens,
    ),
    Column("uncounted_turns", "int64", "Turns that an endpoint did not count.", lambda t: t.uncounted_turns),
    Column("seconds", "double", "From the episode's start to its end.", lambda t: t.seconds),
    Column("sandbox_seconds", "double", "Seconds that it held a sandbox.", lambda t: t.sandbox_seconds),
    Column("finished_at", "double", "End of the episode, Unix time.", lambda t: t.finished_at),
    Column("tool_calls", "int64", "Attempts at a tool call.", lambda t: t.tool_calls.total),
    Column("failed_tool_calls", "int64", "Calls answered by an error.", lambda t: t.tool_calls.failed),
    Column(
        "malformed_tool_calls", "int64", "Calls that could not be read.", lambda t: t.tool_calls.malformed
    ),
    Column(
        "tool_calls_by_tool", "counts", "Readable calls by tool.", lambda t: by_name(t.tool_calls.by_tool)
    ),
    Column(
        "turn_limit",
        "bool",
        "It was cut because its turns were used up; null where the agent's own loop decides.",
        lambda t: t.turn_limit,
    ),
    Column("token_limit", "bool", "A turn was cut, or the context was full.", lambda t: t.token_limit),
    Column("forks", "int64", "Turns whose history drifted.", lambda t: t.forks),
    Column("forks_by_reason", "counts", "The same by reason.", lambda t: by_name(by_reason(t))),
    Column(
        "differing_answers",
        "int64",
        "Tool calls that were answered otherwise than in the run that is scored again.",
        lambda t: t.differing_answers,
    ),
    Column("metrics", "numbers", "The environment's own numbers.", lambda t: by_name(t.metrics)),
    Column("usage", "usage", "What the ledger bills, by day, class and model.", lambda t: bill(t)),
)
COST: Final = Column("cost", "double", "US dollars by the price book, or null.", lambda t: None)


def by_reason(each: Try) -> dict[str, int]:
    """Number of a try's turns whose history drifted, by reason."""
    return {drift.reason: drift.count for drift in each.drifts}


def by_name(numbers: Mapping[str, float]) -> list[tuple[str, float]]:
    """A map in the form that Arrow expects, sorted by name."""
    return sorted(numbers.items())


def bill(each: Try) -> list[dict[str, Any]]:
    """A try's bill: day, class, model (None for the job's own), quantity."""
    return [
        {"day": day, "class": class_of(name), "model": whose(name), "quantity": float(quantity)}
        for day, amounts in sorted(each.usage_by_day.items())
        for name, quantity in sorted(amounts.items())
    ]


def table(tries: Mapping[str, Iterable[Try]], price: Price | None = None) -> pa.Table:
    """The table of some candidates, in the order of `tries`, then by row and try.

    Args:
        tries: candidate -> its tries.
        price: gives the cost of a try. Without it, or if a cost is unknown, the column `cost` is null.
    """
    import pyarrow as pa

    ordered = [each for of in tries.values() for each in sorted(of, key=lambda t: (t.place.row, t.index))]
    types = _types()
    columns = {column.name: [column.value(each) for each in ordered] for column in COLUMNS}
    columns[COST.name] = [_cost(each, price) for each in ordered]
    fields = [
        pa.field(column.name, types[column.kind], metadata={"meaning": column.meaning})
        for column in (*COLUMNS, COST)
    ]
    return pa.table(columns, schema=pa.schema(fields, metadata={"headway.version": VERSION}))


def _cost(each: Try, price: Price | None) -> float | None:
    found = None if price is None else price(each)
    return None if found is None else float(found)


def parquet(found: pa.Table) -> bytes:
    """A table as a Parquet file. Equal tables give equal bytes."""
    import pyarrow.parquet as pq

    written = io.BytesIO()
    pq.write_table(found, written, compression="zstd")
    return written.getvalue()


def plain(found: pa.Table) -> list[dict[str, Any]]:
    """A table's rows as JSON objects, without the columns that are maps or lists."""
    import pyarrow as pa

    kept = [field.name for field in found.schema if not pa.types.is_nested(field.type)]
    rows: list[dict[str, Any]] = found.select(kept).to_pylist()
    return rows


def _types() -> dict[ColumnKind, Any]:
    import pyarrow as pa

    line = pa.struct(
        [("day", pa.date32()), ("class", pa.string()), ("model", pa.string()), ("quantity", pa.float64())]
    )
    return {
        "string": pa.string(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "counts": pa.map_(pa.string(), pa.int64()),
        "numbers": pa.map_(pa.string(), pa.float64()),
        "usage": pa.list_(line),
    }
