"""The learner sends weights from memory over sockets and gloo, even if servers are late, die or stall."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from direct_weights_client import DirectWeightsClient
from role_keys import TO_LEARNER
from torch import Tensor
from weight_senders import sending

from headway_api.records import DirectSource
from headway_api.weights_direct import header_path, join_path
from headway_trainer.publish import sender as publish
from headway_trainer.publish.sender import Sender, describe

SHORT = 8.0
"""Seconds that an impatient learner waits for a server."""


def weights(step: int) -> dict[str, Tensor]:
    """Tensors of several dtypes and shapes. One is larger than a socket takes at once."""
    generator = torch.Generator().manual_seed(step)
    return {
        "embed": torch.randn(3000, 1000, generator=generator).bfloat16(),
        "norm": torch.randn(7, generator=generator),
        "scale": torch.tensor(float(step)),
        "out": torch.randn(40, 50, generator=generator).half(),
    }


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(found) == list(expected) and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in expected.items()
    )


@pytest.fixture
def sender() -> Iterator[Sender]:
    with sending(TO_LEARNER, patience=20) as made:
        yield made


@pytest.fixture
def impatient() -> Iterator[Sender]:
    with sending(TO_LEARNER, patience=SHORT) as made:
        yield made


def taker(sender: Sender, header: str, workers: int = 1) -> DirectWeightsClient:
    return DirectWeightsClient(
        DirectSource(host="127.0.0.1", port=sender.port, header=header), TO_LEARNER, workers
    )


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[dict[str, Any]]]:
    """Returns a function that waits for a log line with this event, and returns all such lines so far."""
    seen: list[str] = []

    def wait(event: str) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 4 * SHORT
        while True:
            seen.extend(capsys.readouterr().out.splitlines())
            found = [line for line in map(json.loads, seen) if line["event"] == event]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    return wait


def test_servers_take_the_same_weights_side_by_side(sender: Sender) -> None:
    header = sender.offer(weights(1))
    first, second = taker(sender, header), taker(sender, header, workers=2)
    places = first.join(), second.join()
    assert places[0].key != places[1].key
    both = second.meet(places[1]), first.meet(places[0])
    for found in (*second.receive(both[0], second.header()), *first.receive(both[1], first.header())):
        assert same(found, weights(1))


def test_before_announcement_servers_may_join_for_either_version(sender: Sender) -> None:
    """A server that joins between offer and announcement still asks for the previous version."""
    gone, before, newest = (sender.offer(weights(step)) for step in range(3))
    assert same(taker(sender, before).take()[0], weights(1))
    assert same(taker(sender, newest).take()[0], weights(2))
    assert taker(sender, gone).ask("GET", header_path(gone))[0] == 404, "host memory holds two at most"


def test_a_late_server_gets_the_newest_weights(sender: Sender) -> None:
    before = sender.offer(weights(1))
    newest = sender.offer(weights(2))
    sender.announced()
    assert same(taker(sender, newest).take()[0], weights(2))
    for method, path in ("GET", header_path(before)), ("POST", join_path(before)):
        code, text = taker(sender, before).ask(method, path)
        assert (code, json.loads(text)["reason"]) == (404, "OtherWeights")


def test_the_same_weights_always_have_the_same_header(sender: Sender) -> None:
    assert sender.offer(weights(1)) == describe(weights(1)).sha256 != describe(weights(2)).sha256


def test_a_transfer_ends_with_the_version_it_began_with(sender: Sender) -> None:
    old = taker(sender, sender.offer(weights(1)))
    header, receivers = old.header(), old.meet(old.join())
    new = taker(sender, sender.offer(weights(2)))
    assert same(new.take()[0], weights(2))
    assert same(old.receive(receivers, header)[0], weights(1))


def test_a_server_that_dies_in_a_transfer_delays_no_other(
    impatient: Sender, logged: Callable[[str], list[dict[str, Any]]]
) -> None:
    one = taker(impatient, impatient.offer(weights(1)))
    header, receivers = one.header(), one.meet(one.join())
    arriving = receivers.pop().tensors(header)
    assert next(arriving)[0] == "embed"
    other = one.meet(one.join())
    arriving.close()
    del arriving
    assert same(one.receive(other, header)[0], weights(1))
    assert len(logged("weights not handed over")) == 1
    assert same(one.take()[0], weights(1)), "the same server, started anew"


@pytest.mark.parametrize("comes", [True, False])
def test_a_server_that_stalls_is_given_up(
    impatient: Sender, logged: Callable[[str], list[dict[str, Any]]], comes: bool
) -> None:
    one = taker(impatient, impatient.offer(weights(1)))
    place = one.join()
    waiting = one.meet(place) if comes else []
    stalled = set(impatient._under_way)
    assert len(stalled) == 1
    assert same(one.take()[0], weights(1))
    assert stalled <= impatient._under_way, "others are not kept waiting until it is given up"
    assert len(logged("weights not handed over")) == 1
    del waiting


def test_no_weights_are_sent_without_the_transfers_key(sender: Sender) -> None:
    one = taker(sender, sender.offer(weights(1)))
    place = one.join()
    stranger = DirectWeightsClient(one.source, TO_LEARNER, step_seconds=0.3)
    with pytest.raises(RuntimeError):
        stranger.meet(place.model_copy(update={"key": "guessed"}))
    assert same(one.receive(one.meet(place), one.header())[0], weights(1))


def test_only_the_jobs_own_processes_are_answered(sender: Sender) -> None:
    header = sender.offer(weights(1))
    stranger = DirectWeightsClient(taker(sender, header).source, "another-token")
    assert stranger.ask("GET", header_path(header))[0] == 401
    assert stranger.ask("POST", join_path(header), "{}")[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v1/weights/{}/join", 404),
        ("POST", "/v1/weights/{}", 404),
        ("GET", "/", 404),
        ("POST", "/v1/weights/{}/join", 400),
    ],
)
def test_an_unknown_path_or_invalid_request_is_refused(
    sender: Sender, method: str, path: str, code: int
) -> None:
    one = taker(sender, sender.offer(weights(1)))
    assert one.ask(method, path.format(one.source.header), "{}")[0] == code


def test_before_the_first_offer_the_sender_answers_404(sender: Sender) -> None:
    assert taker(sender, "0" * 64).ask("GET", header_path("0" * 64))[0] == 404


def test_a_closing_sender_ends_transfers_and_refuses_new_ones(sender: Sender) -> None:
    one = taker(sender, sender.offer(weights(1)))
    header, receivers = one.header(), one.meet(one.join())
    started = time.monotonic()
    sender.close(0.1)
    assert time.monotonic() - started < SHORT
    assert same(one.receive(receivers, header)[0], weights(1))
    with pytest.raises(OSError, match="refused"):
        one.header()


@pytest.mark.parametrize(
    ("length", "body", "message"),
    [
        ("-1", b"{}", "Content-Length"),
        ("65537", b"", "more than 65536 bytes"),
        ("60000", b"[" * 60_000, "nested more than 32 levels deep"),
        ("2", b"{}", "workers"),
        ("35", b'{"workers":1025,"accelerated":true}', "workers"),
        ("10013", b'{"workers": ' + b"9" * 10_000 + b"}", "digits"),
        ("60000", b"[" + b"{}," * 19_999 + b"{]", "not JSON"),
        ("2", b"\xff\xfe", "not JSON"),
        ("12345678901234567890", b"", "Content-Length"),
    ],
)
def test_a_join_out_of_bounds_is_refused(sender: Sender, length: str, body: bytes, message: str) -> None:
    header = sender.offer(weights(1))
    head = f"POST {join_path(header)} HTTP/1.0\r\nAuthorization: Bearer {TO_LEARNER}\r\n"
    head += f"Content-Length: {length}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", sender.port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert b" 400 " in answer.splitlines()[0]
    assert message in json.loads(answer.partition(b"\r\n\r\n")[2])["message"]


def test_a_learner_limits_the_number_of_transfers(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "MAX_TRANSFERS", 1)
    header = sender.offer(weights(1))
    first, second = taker(sender, header), taker(sender, header)
    place = first.join()
    code, response = second.ask("POST", join_path(header), '{"workers": 1, "accelerated": false}')
    assert (code, json.loads(response)["reason"]) == (503, "NoPlace")
    assert same(first.receive(first.meet(place), first.header())[0], weights(1))
