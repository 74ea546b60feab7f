"""Sends the newest weights from this process's memory to servers that join (`headway_api.weights_direct`).

A version is offered before it is announced. Until the announcement, servers join for the previous version, so
the sender offers both. Servers come and go at any time, also while the next step is trained. So each join has
its own thread and process group. A transfer in progress always finishes with the version that it began with.
A server that is cut off in the middle of a transfer would have to restart its engine.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Final

import torch
from pydantic import ValidationError
from torch import Tensor

from headway_api import names
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_api.config import JobConfig
from headway_api.keys import Key
from headway_api.record import Record, explained
from headway_api.sandbox_api import Problem
from headway_api.weights_direct import DirectHeader, DirectJoin, DirectTensor, header_path, join_path
from headway_trainer.logs import log
from headway_trainer.publish.handover import Handover
from headway_trainer.ranks import Ranks
from headway_wire.threads import ThreadedServer, body

DTYPES: Final = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
MAX_THREADS: Final = 8
UNAUTHORIZED: Final = f"send this job's key {Key.ROLLOUT_TO_LEARNER} as Authorization: Bearer"
LONGEST_BODY: Final = 1 << 16
SHOWN: Final = 200
MAX_TRANSFERS: Final = 1024
"""Maximum transfers in progress at once. Each has a thread and a port. A job has far fewer servers."""
DRAIN_SECONDS: Final = 30.0
"""Maximum seconds that a finished learner waits for transfers in progress."""


@dataclass(frozen=True)
class Offer:
    """Weights that servers can fetch."""

    header: DirectHeader
    sha256: str
    tensors: list[Tensor]
    """The tensors in the header's order, on the CPU. No code may change them."""


def describe(tensors: Mapping[str, Tensor]) -> DirectHeader:
    """The header of `tensors`, which must be on the CPU."""

    def one(item: tuple[str, Tensor]) -> DirectTensor:
        name, tensor = item
        data = tensor.view(-1).view(torch.uint8).numpy().data
        sha256 = hashlib.sha256(data).hexdigest()
        return DirectTensor(name=name, dtype=DTYPES[tensor.dtype], shape=list(tensor.shape), sha256=sha256)

    with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as threads:
        return DirectHeader(tensors=list(threads.map(one, tensors.items())))


class Sender:
    """Serves the last offered weights, and the last announced ones, from threads."""

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        device: torch.device,
        handover: Callable[[DirectJoin, torch.device], Handover] = Handover,
    ) -> None:
        """
        Args:
            host: host name under which the servers reach this process.
            key: the key that every request must send.
            device: the device on which this process trains.
        """
        self._offers: tuple[Offer, ...] = ()
        """The offered weights, the newest last."""
        self._device = device
        self._handover = handover
        self._under_way: set[threading.Thread] = set()
        self._server = ThreadedServer(port, _handler(self, key))
        self.host = host
        self.port = self._server.port
        self._server.start("weights")

    def offer(self, tensors: Mapping[str, Tensor]) -> str:
        """Offer `tensors`, and return the SHA-256 of their header. No code may change `tensors` afterwards.

        The previous offer remains until `announced` is called.
        """
        header = describe(tensors)
        offer = Offer(header, header.sha256, list(tensors.values()))
        self._offers = (*self._offers[-1:], offer)
        return offer.sha256

    def announced(self) -> None:
        """Withdraw all offers except the last: it has been announced, and servers now ask for it."""
        self._offers = self._offers[-1:]

    def offered(self, path: str) -> Offer | None:
        """The offer whose header or join endpoint is at `path`; None if there is none."""
        found = (o for o in self._offers if path in (header_path(o.sha256), join_path(o.sha256)))
        return next(found, None)

    def begin(self, offer: Offer, join: DirectJoin) -> Record:
        """Open a rendezvous for the workers of a server, wait for them in a new thread, and return its
        address.

        Raises:
            RuntimeError: the rendezvous cannot be opened, or too many transfers are in progress.
        """
        if len(self._under_way) >= MAX_TRANSFERS:
            raise RuntimeError(f"{MAX_TRANSFERS} transfers are running, the most at once; ask again")
        handover = self._handover(join, self._device)
        thread = threading.Thread(
            target=self._hand_over, args=(handover, offer), name="transfer", daemon=True
        )
        self._under_way.add(thread)
        thread.start()
        return handover.place

    def close(self, seconds: float = DRAIN_SECONDS) -> None:
        """Refuse new joins, and wait for the transfers in progress, for `seconds` at most."""
        self._server.close()
        deadline = time.monotonic() + seconds
        for thread in tuple(self._under_way):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._offers = ()

    def _hand_over(self, handover: Handover, offer: Offer) -> None:
        try:
            seconds = handover.run(offer.tensors)
            log("weights handed over", header=offer.sha256, seconds=round(seconds, 3))
        except RuntimeError as error:
            log("weights not handed over", header=offer.sha256, why=str(error).partition("\n")[0])
        finally:
            self._under_way.discard(threading.current_thread())


def sender_of(config: JobConfig, key: str, environ: Mapping[str, str], ranks: Ranks) -> Sender | None:
    """The sender of this process; None if its job has no direct transfers, or if it is not rank 0."""
    if not ranks.first or not config.spec.learner.weights.direct(config.spec.model):
        return None
    host, port = names.learner_host(config.name, config.namespace), names.PORT_DIRECT
    if names.ENV_DIRECT_ADDRESS in environ:
        host, _, number = environ[names.ENV_DIRECT_ADDRESS].rpartition(":")
        port = int(number)
    return Sender(host, port, key, ranks.device)


def _handler(sender: Sender, key: str) -> type[BaseHTTPRequestHandler]:
    expected = f"Bearer {key}".encode()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if (offer := self._found("header")) is not None:
                self._answer(200, offer.header)

        def do_POST(self) -> None:
            if (offer := self._found("join")) is None:
                return
            try:
                join = DirectJoin.model_validate(json_within(body(self, LONGEST_BODY), LONGEST_BODY))
            except ValidationError as error:
                self._refuse(400, "InvalidJoin", f"this is not a valid way to join: {explained(error)}")
                return
            except OutOfBoundsError as error:
                why = shortened(str(error), SHOWN)
                self._refuse(400, "InvalidJoin", f"the body cannot be read: {why}")
                return
            try:
                place = sender.begin(offer, join)
            except RuntimeError as error:
                self._refuse(503, "NoPlace", str(error))
                return
            self._answer(200, place)

        def _found(self, what: str) -> Offer | None:
            """The requested offer. If there is none, answer with the reason and return None."""
            given = self.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, expected):
                self._refuse(401, "Unauthorized", UNAUTHORIZED)
                return None
            offer = sender.offered(self.path)
            if offer is None or self.path.endswith("/join") != (what == "join"):
                self._refuse(404, "OtherWeights", "the learner offers other weights now, or none yet")
                return None
            return offer

        def _refuse(self, status: int, reason: str, message: str) -> None:
            self._answer(status, Problem(reason=reason, message=message))

        def _answer(self, status: int, record: Record) -> None:
            body = record.model_dump_json().encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing here: the transfer itself logs its result."""

    return Handler
