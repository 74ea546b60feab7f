"""A learner's sender of weights that lasts for a block of a test, and leaves no transfer behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway_trainer.publish.sender import Sender


@contextmanager
def sending(key: str, *, patience: float = 20, host: str = "127.0.0.1", port: int = 0) -> Iterator[Sender]:
    """Yield a sender that waits `patience` seconds for a server; end all its transfers after the block.

    Otherwise a thread could still wait in torch's store when the interpreter exits, which aborts the process.
    """
    import torch

    from headway_trainer.publish.handover import Handover
    from headway_trainer.publish.sender import Sender

    handover: Any = partial(Handover, step_seconds=patience, go_seconds=patience)
    made = Sender(host, port, key, torch.device("cpu"), handover)
    try:
        yield made
    finally:
        made.close(4 * patience)
        assert not made._under_way
