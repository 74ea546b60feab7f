"""What the spool says of a place it cannot write to."""

from __future__ import annotations

import pytest
from refusing_bucket import refusing_store

from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_rollout.spool import Spool


def test_a_bucket_that_may_not_be_written_is_named_before_anything_starts() -> None:
    spool = Spool(refusing_store("AccessDenied", 403), Layout("s3://typo/runs", "rl", "refunds", "uid"))
    with pytest.raises(JobError) as refused:
        spool.incarnation()
    told = refused.value.termination
    assert (told.reason, told.field, refused.value.permanent) == (
        "BucketUnavailable",
        "spec.output.uri",
        True,
    )
    assert "bucket 'typo' cannot be used" in told.message
