"""Answers of the API server: none is read beyond its bound, and a large page is requested in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
import urllib3

from headway_api.bounds import OutOfBoundsError
from headway_api.document import Json
from headway_operator import kube, wire
from headway_operator.kube import EVENT, KINDS, Api, ApiError


class Response:
    """A response that returns its body in pieces of a given size, and counts what was read."""

    def __init__(self, body: bytes, size: int = 1000) -> None:
        self._body, self._size = body, size
        self.taken = 0
        self.closed = False

    def read(self, amount: int, decode_content: bool = False) -> bytes:
        piece = self._body[self.taken : self.taken + min(amount, self._size)]
        self.taken += len(piece)
        return piece

    def stream(self, amount: int | None, decode_content: bool = False) -> Iterator[bytes]:
        for place in range(0, len(self._body), self._size):
            yield self._body[place : place + self._size]

    def close(self) -> None:
        self.closed = True


def given(body: bytes, size: int = 1000) -> urllib3.BaseHTTPResponse:
    return cast(urllib3.BaseHTTPResponse, Response(body, size))


def test_an_answer_is_read_whole_and_no_further_than_its_bound() -> None:
    assert kube._within(given(b"x" * 5000), 5000) == b"x" * 5000
    beyond = Response(b"x" * 10**6)
    with pytest.raises(OutOfBoundsError, match="more than 5000 bytes"):
        kube._within(cast(urllib3.BaseHTTPResponse, beyond), 5000)
    assert beyond.closed
    assert beyond.taken == 5001


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_are_told_apart_in_pieces_of_any_size(size: int) -> None:
    assert list(kube._lines(given(b'{"a":1}\n\n{"b":2}\n', size))) == [b'{"a":1}', b'{"b":2}']


def test_a_line_beyond_its_bound_is_empty_and_the_next_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "OBJECT_BYTES", 5000)
    text = b'{"a":"' + b"x" * 20_000 + b'"}\n{"b":2}\n'
    assert list(kube._lines(given(text))) == [b"", b'{"b":2}']


@pytest.mark.parametrize(
    "body", [b"[" * 5000, b"", b"<html>", b'{"message": 7}', b"[]", b"null", b"x" * 10**6]
)
def test_a_refusal_of_any_shape_is_a_refusal(body: bytes) -> None:
    assert ApiError.of(503, body).status == 503


class Paged(Api):
    """Objects of a given size, returned page by page."""

    def __init__(self, many: int, bytes_each: int) -> None:
        self.many, self.each = many, bytes_each
        self.asked: list[int] = []

    def _read(self, method: str, path: str, *, max_bytes: int, **request: Any) -> bytes:
        limit, start = int(request["query"]["limit"]), int(request["query"].get("continue") or 0)
        self.asked.append(limit)
        items = [self.item(number) for number in range(start, min(self.many, start + limit))]
        following = {"continue": str(start + limit)} if start + limit < self.many else {}
        if sum(self.each for _ in items) > max_bytes:
            raise OutOfBoundsError(f"more than {max_bytes} bytes")
        return json.dumps({"metadata": {"resourceVersion": "9"} | following, "items": items}).encode()

    def item(self, number: int) -> Json:
        return {"metadata": {"name": f"o{number}", "uid": f"u{number}", "resourceVersion": "1"}}


def test_a_page_beyond_its_bound_is_asked_for_in_smaller_ones() -> None:
    api = Paged(many=250, bytes_each=wire.PAGE_BYTES // 50)
    found, version = api.list(KINDS["ConfigMap"], "n")
    assert [body["metadata"]["name"] for body in found] == [f"o{number}" for number in range(250)]
    assert version == "9"
    assert api.asked[:2] == [100, 12]


def test_only_a_limited_number_of_events_is_read() -> None:
    api = Paged(many=50_000, bytes_each=1)
    assert len(api.list(EVENT, "n")[0]) == kube.EVENTS
