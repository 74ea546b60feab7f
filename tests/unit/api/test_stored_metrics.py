"""Records of metrics have the same form as in earlier versions of Headway."""

from __future__ import annotations

import pytest

from headway_api.record import Record
from headway_api.records import BatchMetrics, ValidationRecord

BATCH = '{"step":1,"groups":["t0-000000"],"figures":{"rollout/reward/mean":0.5}}'
VALIDATION = (
    '{"step":2,"reward":0.5,"external_score":0.25,"success":0.5,"episodes":2,"failed":0,'
    '"rows":{"v000002-000000":{"rewards":[0.0,1.0],"scores":[0.0,0.5]}},"tasks":null,'
    '"figures":{"val/reward/mean":0.5}}'
)


@pytest.mark.parametrize(("kind", "stored"), [(BatchMetrics, BATCH), (ValidationRecord, VALIDATION)])
def test_a_stored_record_of_metrics_is_written_as_it_was(kind: type[Record], stored: str) -> None:
    assert kind.model_validate_json(stored).model_dump_json() == stored
