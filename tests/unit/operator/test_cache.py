"""The cache is never older than the operator's last write, and a reused name does not confuse it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway_api import names
from headway_api.document import Json
from headway_operator.cache import Cache


def pod(version: int, uid: str = "u1", name: str = "p", job: str = "j1") -> Json:
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {names.LABEL_JOB_UID: job},
    }
    return {"kind": "Pod", "metadata": metadata}


def test_an_older_event_does_not_undo_a_write() -> None:
    cache = Cache()
    assert cache.put(pod(5))
    assert not cache.put(pod(4))
    assert cache.get("Pod", "n", "p") == pod(5)


def test_versions_are_compared_as_numbers() -> None:
    cache = Cache()
    cache.put(pod(9))
    assert cache.put(pod(10))


def test_the_deletion_of_an_object_does_not_delete_its_successor() -> None:
    cache = Cache()
    cache.put(pod(5, "old"))
    cache.put(pod(8, "new"))
    assert not cache.remove(pod(7, "old"))
    assert cache.get("Pod", "n", "p") == pod(8, "new")


def test_a_deleted_object_does_not_come_back_by_a_late_event() -> None:
    cache = Cache()
    cache.put(pod(5))
    cache.remove(pod(6))
    assert not cache.put(pod(5))
    assert cache.of_job("j1", "n") == []


def test_a_list_removes_objects_that_it_lacks() -> None:
    cache = Cache()
    cache.put(pod(3, "a", "a"))
    cache.put(pod(4, "b", "b"))
    changed = cache.replace("Pod", "n", [pod(4, "b", "b"), pod(6, "c", "c")], 7)
    assert {body["metadata"]["name"] for body in changed} == {"a", "c"}
    assert {body["metadata"]["name"] for body in cache.of_job("j1", "n")} == {"b", "c"}


def test_a_list_keeps_objects_that_were_written_after_it() -> None:
    cache = Cache()
    cache.put(pod(9))
    assert cache.replace("Pod", "n", [], 8) == []
    assert cache.of_job("j1", "n")


def test_a_list_of_one_namespace_keeps_objects_of_others() -> None:
    cache = Cache()
    cache.put(pod(3))
    cache.replace("Pod", "elsewhere", [], 9)
    assert cache.of_job("j1", "n")


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=40))
def test_the_newest_version_seen_is_stored(events: list[tuple[int, bool]]) -> None:
    """Events of one object may come in any order: the newest version is kept until its deletion was seen."""
    cache = Cache()
    gone, newest = False, 0
    for version, deleted in events:
        if deleted:
            cache.remove(pod(version))
            gone = True
        else:
            cache.put(pod(version))
            newest = max(newest, version)
    found = cache.get("Pod", "n", "p")
    if gone:
        assert found is None
    else:
        assert (found is None and newest == 0) or found == pod(newest)
