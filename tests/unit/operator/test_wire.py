"""What the API server sends: an object out of bounds harms no other, and the error says what is wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from observed_cluster import job

from headway_api.bounds import MIB, OutOfBoundsError
from headway_operator import wire
from headway_operator.wire import UNREAD


def deep(levels: int) -> str:
    """A JSON text too deep for Python's own reader."""
    return '{"a":' * levels + "1" + "}" * levels


def stored(config: str = "{}", **spec: Any) -> bytes:
    """A job as the API server stores it, with this text as its config."""
    body = job(**spec)
    body["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": "MANAGED"}]
    body["spec"]["environment"]["config"] = "CONFIG"
    text = json.dumps(body).replace('"CONFIG"', config)
    # The field managers are nested as deep as the fields that they manage.
    return text.replace('"MANAGED"', config).encode()


FAT = "[" + "{}," * 400_000 + "{}]"


def test_a_job_within_bounds_is_read_as_it_is() -> None:
    found = wire.job(stored('{"a": [1]}'))
    expected = job()
    expected["spec"]["environment"]["config"] = {"a": [1]}
    assert found == expected


@pytest.mark.parametrize("levels", [40, 1200, 9900])
def test_a_deep_job_is_read_without_the_deep_block(levels: int) -> None:
    found = wire.job(stored(deep(levels)))
    message = "spec.environment.config: nested more than 32 levels deep; write it smaller and flatter"
    assert found[UNREAD] == message
    assert "environment" not in found["spec"]
    assert found["spec"]["model"] == job()["spec"]["model"]
    assert found["metadata"] == job()["metadata"]


@pytest.mark.parametrize("field", ["environment.contract", "suites[1].args", "suites[1].sandbox.podTemplate"])
def test_the_free_field_that_is_too_deep_is_named(field: str) -> None:
    value: Any = "DEEP"
    for key in reversed(field.partition(".")[2].split(".")):
        value = {key: value}
    block = field.partition(".")[0].removesuffix("[1]")
    body = job(**{block: [{"name": "a"}, value] if block == "suites" else value})
    found = wire.job(json.dumps(body).replace('"DEEP"', "[" * 60 + "]" * 60).encode())
    named = f"spec.{field}" if field.count(".") < 2 else "spec.suites[1].sandbox"
    assert found[UNREAD] == f"{named}: nested more than 32 levels deep; write it smaller and flatter"


def test_a_job_that_is_too_large_is_read_without_that_block() -> None:
    found = wire.job(stored('{"list":' + FAT + "}"))
    assert found[UNREAD] == "spec.environment.config: more than 196608 bytes; write it smaller and flatter"
    assert found["spec"].keys() == job()["spec"].keys() - {"environment"}


def test_a_status_out_of_bounds_is_left_out() -> None:
    text = stored().replace(b'"status": {}', b'"status": {"preflight": ' + deep(500).encode() + b"}")
    found = wire.job(text)
    assert found["status"] == {}
    assert found[UNREAD].startswith("status: nested more than 32 levels deep; ")
    assert found["spec"]["model"]


def test_many_blocks_that_are_each_within_bounds_are_read() -> None:
    padding = {"p": ["x" * 1000] * 90}
    found = wire.job(stored(json.dumps(padding), learner={"podTemplate": padding, "x": padding}))
    assert UNREAD not in found
    assert found["spec"]["learner"]["podTemplate"] == padding


def listed(*texts: bytes) -> bytes:
    return b'{"kind":"List","metadata":{"resourceVersion":"7"},"items":[' + b",".join(texts) + b"]}"


@pytest.mark.parametrize("config", [deep(5000), FAT])
def test_a_list_shows_every_other_object(config: str) -> None:
    items, metadata = wire.page(listed(stored(), stored(config), stored()))
    whole, beyond, also_whole = items
    assert metadata == {"resourceVersion": "7"}
    assert whole["spec"] == also_whole["spec"]
    assert beyond.keys() == {"metadata", UNREAD}
    assert beyond["metadata"]["uid"] == whole["metadata"]["uid"]


def test_an_object_without_identity_is_left_out_of_a_list() -> None:
    odd = [b'{"metadata":{"name":"a"}}', b'{"metadata":[]}', b"{}", b"7", b"null"]
    items, _ = wire.page(listed(*odd, stored()), identity=True)
    assert [body["metadata"]["name"] for body in items] == ["refunds"]


def test_an_empty_list_of_metadata_is_null() -> None:
    items, _ = wire.page(b'{"metadata":{"resourceVersion":"7"},"items":null}', identity=True)
    assert list(items) == []


def line(kind: str, body: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"


@pytest.mark.parametrize("config", [deep(5000), FAT])
def test_an_event_of_any_object_has_its_identity(config: str) -> None:
    assert wire.event(line("MODIFIED", stored(config)))["object"]["metadata"]["name"] == "refunds"
    event = wire.event(line("MODIFIED", stored(config)), identity=True)
    assert event["type"] == "MODIFIED"
    assert event["object"]["metadata"].keys() == set(wire.IDENTITY)


def test_a_bookmark_and_an_error_are_read() -> None:
    mark = wire.event(line("BOOKMARK", b'{"kind":"Pod","metadata":{"resourceVersion":"12"}}'))
    assert mark == {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}}
    assert wire.event(line("ERROR", b'{"code":410,"reason":"Expired"}'))["object"]["code"] == 410


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"type":7,"object":{}}',
        b'{"type":"ADDED","object":{"metadata":{"name":1}}}',
    ],
)
def test_an_unreadable_event_raises_one_error(text: bytes) -> None:
    with pytest.raises(OutOfBoundsError):
        wire.event(text)


def test_only_pod_fields_that_the_planner_reads_are_kept() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "annotations": {"a": "x" * MIB},
            "labels": {"headway.dev/job-uid": "u", "app.kubernetes.io/component": "learner", "x": "y"},
            "managedFields": [{}],
        },
        "spec": {
            "nodeName": "n",
            "containers": [
                {
                    "name": "c",
                    "image": "registry.test/c:1",
                    "env": [{}] * 9,
                    "envFrom": [{"secretRef": {"name": "keys"}}],
                    "resources": {"limits": {"memory": "1Gi"}},
                }
            ],
            "volumes": [{}],
        },
        "status": {"phase": "Running"},
    }
    found = wire.slim(copy.deepcopy(pod))
    assert found["metadata"].keys() == {"name", "labels"}
    assert found["metadata"]["labels"].keys() == {"headway.dev/job-uid", "app.kubernetes.io/component"}
    container = {
        "name": "c",
        "image": "registry.test/c:1",
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    assert found["spec"] == {"nodeName": "n", "containers": [container]}
    assert found["status"] == pod["status"]


def test_a_job_keeps_its_annotations() -> None:
    body = job()
    body["metadata"]["annotations"] = {"headway.dev/resume": "x"}
    assert wire.slim(copy.deepcopy(body)) == body
