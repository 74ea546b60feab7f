"""Receives weights from a learner's memory as a rollout server does, without an engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout_server import request

from headway_api.records import DirectSource
from headway_api.weights_direct import DirectHeader, DirectJoin, DirectPlace, header_path, join_path

if TYPE_CHECKING:
    from torch import Tensor

    from headway_rollout.receiver import Receiver


@dataclass(frozen=True)
class DirectWeightsClient:
    """A client that acts as one server with `workers` workers."""

    source: DirectSource
    token: str
    workers: int = 1
    step_seconds: float = 20.0

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        return request(method, f"http://{self.source.host}:{self.source.port}{path}", body, self.token)

    def header(self) -> DirectHeader:
        code, text = self.ask("GET", header_path(self.source.header))
        assert code == 200, text
        return DirectHeader.model_validate_json(text)

    def join(self) -> DirectPlace:
        asked = DirectJoin(workers=self.workers, accelerated=False).model_dump_json()
        code, text = self.ask("POST", join_path(self.source.header), asked)
        assert code == 200, text
        return DirectPlace.model_validate_json(text)

    def meet(self, place: DirectPlace) -> list[Receiver]:
        """The receiver of each worker, once all have joined the learner's process group."""
        import torch

        from headway_rollout.receiver import Receiver

        def one(rank: int) -> Receiver:
            return Receiver(
                self.source.host,
                place,
                rank=rank,
                size=1 + self.workers,
                device=torch.device("cpu"),
                step_seconds=self.step_seconds,
            )

        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(one, range(1, 1 + self.workers)))

    def receive(self, receivers: list[Receiver], header: DirectHeader) -> list[dict[str, Tensor]]:
        """The tensors that each worker receives, by name."""
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(lambda receiver: dict(receiver.tensors(header)), receivers))

    def take(self) -> list[dict[str, Tensor]]:
        """The tensors that each worker receives, after all requests to the learner."""
        header = self.header()
        return self.receive(self.meet(self.join()), header)
