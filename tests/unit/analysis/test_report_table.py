"""`results.parquet`: its columns, and tries that cost what the ledger bills."""

from __future__ import annotations

import io
from typing import Literal

import finished_evaluation as job
import pyarrow.parquet as pq
import pytest

from headway_analysis.billing.segments import by_name, fold, total
from headway_analysis.measures.candidate import priced, total_cost
from headway_analysis.report.document import used_by
from headway_analysis.report.table import COLUMNS, COST, bill, parquet, table
from headway_api.prices import cost_by_day
from headway_api.records import GroupRecord, UsageClass
from headway_coordinator.ledger import events


def test_a_row_for_each_candidate_row_and_try() -> None:
    found = table(job.tries(), priced(job.BOOK))
    assert found.num_rows == len(job.CHANCE) * job.ROWS * job.TRIES
    assert found.column_names == [column.name for column in (*COLUMNS, COST)]
    keys = found.select(["candidate", "row", "try"]).to_pylist()
    order = list(job.CHANCE)
    assert keys == sorted(keys, key=lambda key: (order.index(key["candidate"]), key["row"], key["try"]))
    assert len({tuple(key.values()) for key in keys}) == found.num_rows


def test_every_column_says_what_it_means() -> None:
    read = pq.read_table(io.BytesIO(parquet(table(job.tries()))))
    assert all(field.metadata[b"meaning"] for field in read.schema)


def test_a_table_is_written_the_same_twice() -> None:
    assert parquet(table(job.tries())) == parquet(table(job.tries()))


def test_a_try_is_read_back_as_it_was() -> None:
    read = pq.read_table(io.BytesIO(parquet(table(job.tries(), priced(job.BOOK))))).to_pylist()
    for line, each in zip(read, [t for name in job.CHANCE for t in job.tries()[name]], strict=True):
        assert (line["reward"], line["external_score"]) == (each.reward, each.external_score)
        assert dict(line["tool_calls_by_tool"]) == each.tool_calls.by_tool
        assert dict(line["metrics"]) == each.metrics
        assert line["cluster"] == f"cluster d{each.place.row // 2}"
        assert line["scored"] is (line["outcome"] != "InfraError")


def test_no_tries_and_no_candidates_both_make_an_empty_table() -> None:
    assert table({"gone": []}).num_rows == table({}).num_rows == 0


@pytest.mark.parametrize("sampled_by", ["servers", "endpoint", "nobody"])
def test_tries_are_billed_what_the_ledger_bills(sampled_by: Literal["servers", "endpoint", "nobody"]) -> None:
    groups: list[GroupRecord] = [job.group("base", row, sampled_by=sampled_by) for row in range(40)]
    assert any(one.discarded for one in groups)
    assert any(len(one.scored) < len(one.episodes) for one in groups)
    ledger = fold(event for one in groups for event in events.of_group(one))
    tries = job.measured(groups)
    billed = {name.value: amount for name, amount in total(ledger).items() if amount}
    assert used_by(tries) == pytest.approx(billed)
    days = by_name(ledger, {})
    assert float(total_cost(tries, priced(job.BOOK))) == pytest.approx(float(cost_by_day(days, job.BOOK)))
    models = {line["model"] for one in tries for line in bill(one) if line["class"] != "sandboxSeconds"}
    assert models == {"servers": {None}, "endpoint": {"frontier"}, "nobody": set()}[sampled_by]


def test_endpoints_are_billed_apart_and_a_rescore_only_sandboxes() -> None:
    endpoint = used_by(job.measured([job.group("base", 0, sampled_by="endpoint")]))
    assert endpoint.keys() == {
        UsageClass.ENDPOINT_PROMPT,
        UsageClass.ENDPOINT_SAMPLE,
        UsageClass.SANDBOX_SECONDS,
    }
    assert used_by(job.measured([job.group("base", 0, sampled_by="nobody")])).keys() == {
        UsageClass.SANDBOX_SECONDS
    }
