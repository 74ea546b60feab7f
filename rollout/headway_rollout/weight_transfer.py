"""Runs inside vLLM: a weight-transfer engine that reads a checkpoint from a folder, or from the learner.

Only this module and `cpu_lora` know vLLM's internals. `launch.py` names `WorkerExtension` as the worker
extension, so every worker imports this module before it creates its transfer engine.

vLLM's reload packs each layer's weights again as it loads them. It skips an output head that is tied to the
embeddings. On a GPU the head shares the embeddings' storage, so it has the new weights. On a CPU the head
multiplies with a packed copy of its weights, made once at the start. The head would keep the old weights
while every request answers 200. So `finish_weight_update` packs the head again.

The worker compares each tensor with the learner's digest before the model receives it. The model stores some
parameters exactly as the checkpoint has them; a comparison with the base model shows which. After the load,
the worker compares these parameters with the digests too. So the engine's own process has checked that it
holds this version. That works in bfloat16 too, where a canary cannot distinguish versions.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from headway_api.records import TensorDigests
from headway_api.weights_direct import DirectHeader, DirectPlace
from headway_rollout.engine import WRONG_TENSOR
from headway_rollout.receiver import Receiver
from headway_rollout.worker import Worker

BACKEND = "headway-folder"
"""The same name as `launch.TRANSFER_BACKEND`; a test compares the two."""

HASHED_AHEAD = 8
"""Maximum tensors that are hashed while earlier tensors are loaded."""
HASHED_AHEAD_DIRECT = 2
"""`HASHED_AHEAD` for tensors that the learner sends: they occupy the device's memory meanwhile."""


class WrongTensorError(Exception):
    """A tensor's digest differs from the learner's, or a tensor is missing."""


@dataclass
class NoInit(WeightTransferInitInfo):
    """Empty: the transfer engine needs no settings when it starts."""


@dataclass
class Folder(WeightTransferUpdateInfo):
    """A whole checkpoint in Hugging Face layout, or the header of weights that the learner sends."""

    folder: str
    files: list[str] = field(default_factory=list)
    """Safetensors files in `folder`; empty if the learner sends the weights."""
    digests: str | None = None
    """File with the tensors' digests; without it the tensors are not checked."""
    header: str | None = None
    """File with the `DirectHeader` of the weights that the learner sends; None if `files` has the weights."""


class FolderTransferEngine(WeightTransferEngine[NoInit, Folder]):
    """Loads tensors into the live model: from a folder's safetensors files, or from the learner."""

    init_info_cls = NoInit
    update_info_cls = Folder
    _receiver: Receiver | None = None
    """The connection to a learner that has sent no weights yet; None without one."""
    _expected: Mapping[str, str] = {}
    """Digests of the current update's tensors, by tensor name."""
    _dtypes: Mapping[str, torch.dtype] = {}
    """Number formats in which the current update's tensors were received, by tensor name."""
    _kept: frozenset[str] | None = None
    """Names of parameters that the model stores exactly as checkpoints do; None before the first update."""

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to set up."""

    def meet(self, host: str, place: DirectPlace) -> None:
        """Connect to the learner, together with the engine's other workers; the model is unchanged.

        Raises:
            RuntimeError: the learner, or another worker, did not connect in time.
        """
        self._receiver = None
        self._receiver = Receiver(
            host,
            place,
            rank=1 + self.parallel_config.rank,
            size=1 + self.parallel_config.world_size,
            device=self.device,
        )

    def start_weight_update(self) -> None:
        """Make every layer accept checkpoint tensors again."""
        if self._kept is None:  # the model is still the base model
            self._kept = kept_as_they_are(self.model, Path(self.model_config.model))
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Folder) -> None:
        """Load the tensors into the model, with only a few of them in memory at a time.

        Raises:
            ValueError: the update names neither files nor a header.
            RuntimeError: the weights come from the learner, which was not joined or stopped responding.
            WrongTensorError: a tensor differs from its digest, or is missing.
        """
        self._expected, self._dtypes = {}, {}
        folder = Path(update_info.folder)
        if update_info.header is not None:
            self.model.load_weights(self._handed_over(folder / update_info.header))
            return
        if not update_info.files:
            raise ValueError("no files to load: the update would leave the old weights and answer 200")
        tensors = _tensors(folder, update_info.files)
        if update_info.digests is not None:
            digests = TensorDigests.model_validate_json((folder / update_info.digests).read_bytes())
            tensors = self._verified(tensors, digests.tensors)
        self.model.load_weights(tensors)

    def _handed_over(self, path: Path) -> Iterator[tuple[str, torch.Tensor]]:
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            raise RuntimeError("no learner was joined for these weights")
        header = DirectHeader.model_validate_json(path.read_bytes())
        expected = {tensor.name: tensor.sha256 for tensor in header.tensors}
        return self._verified(receiver.tensors(header), expected, HASHED_AHEAD_DIRECT)

    def _verified(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        expected: Mapping[str, str],
        ahead: int = HASHED_AHEAD,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        dtypes: dict[str, torch.dtype] = {}
        self._expected, self._dtypes = expected, dtypes
        return verified(tensors, expected, dtypes, ahead)

    def finish_weight_update(self) -> None:
        """Let vLLM store the loaded weights as its kernels need them, and check those stored unchanged.

        Raises:
            WrongTensorError: a parameter in the model differs from its digest.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            _pack_output_heads(self.model)
        kept = {name: self._dtypes[name] for name in self._kept or () if name in self._dtypes}
        check_kept(self.model, kept, self._expected)

    def shutdown(self) -> None:
        """Drop the connection to the learner, if there is one."""
        self._receiver = None


def _tensors(
    folder: Path, files: list[str], of: Collection[str] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of `files`, or only those named in `of`. Each is read when the caller asks for it."""
    for name in files:
        with safe_open(folder / name, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118  safe_open is not a mapping
                if of is None or key in of:
                    yield key, file.get_tensor(key)


def verified(
    tensors: Iterable[tuple[str, torch.Tensor]],
    expected: Mapping[str, str],
    dtypes: MutableMapping[str, torch.dtype],
    ahead_of_use: int = HASHED_AHEAD,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and tensors of `tensors`, each after its digest was checked.

    Args:
        tensors: names and tensors.
        expected: SHA-256 of each tensor, by name.
        dtypes: receives the number format of each tensor, by name.
        ahead_of_use: maximum tensors that are hashed while the caller uses earlier ones.

    Raises:
        WrongTensorError: a tensor differs from its digest, or a tensor of `expected` is missing.
    """
    with ThreadPoolExecutor(HASHED_AHEAD) as threads:
        ahead: deque[tuple[str, torch.Tensor, Future[str]]] = deque()

        def first() -> tuple[str, torch.Tensor]:
            name, tensor, found = ahead.popleft()
            check(name, found.result(), expected)
            dtypes[name] = tensor.dtype
            return name, tensor

        for name, tensor in tensors:
            ahead.append((name, tensor, threads.submit(digest, tensor)))
            if len(ahead) > ahead_of_use:
                yield first()
        while ahead:
            yield first()
    missing = sorted(expected.keys() - dtypes.keys())
    if missing:
        raise WrongTensorError(f"{WRONG_TENSOR}{missing[0]} was not handed over")


def kept_as_they_are(model: torch.nn.Module, base: Path) -> frozenset[str]:
    """Names of parameters that equal the tensor of the same name in the checkpoint `base`.

    A tensor is converted to its parameter's number format first. As a rule embeddings and norms are equal. On
    a GPU, all parameters that are neither fused nor split over workers are equal too.
    """
    parameters = dict(model.named_parameters())
    files = sorted(path.name for path in base.glob("*.safetensors"))
    found = _tensors(base, files, of=parameters)
    return frozenset(name for name, tensor in found if _same(parameters[name], tensor))


def _same(parameter: torch.Tensor, tensor: torch.Tensor) -> bool:
    return parameter.shape == tensor.shape and torch.equal(
        parameter.detach().cpu(), tensor.to(parameter.dtype)
    )


def check_kept(model: torch.nn.Module, kept: Mapping[str, torch.dtype], expected: Mapping[str, str]) -> None:
    """Raise `WrongTensorError` if a parameter that the model stores unchanged differs from its digest.

    `kept` has the names of such parameters, with the number format in which each tensor was received. A
    parameter that the model stores in another format has other bytes, and is skipped.
    """
    parameters = dict(model.named_parameters())
    same_format = {name: parameters[name] for name, dtype in kept.items() if parameters[name].dtype == dtype}
    with ThreadPoolExecutor(HASHED_AHEAD) as threads:
        for name, found in zip(same_format, threads.map(digest, same_format.values()), strict=True):
            check(name, found, expected)


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()


def check(name: str, found: str, expected: Mapping[str, str]) -> None:
    """Raise `WrongTensorError` if the digest `found` of tensor `name` is not the expected one."""
    if found != expected.get(name):
        raise WrongTensorError(
            f"{WRONG_TENSOR}{name} has sha256 {found}; the learner published {expected.get(name)}"
        )


def _pack_output_heads(model: torch.nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


class WorkerExtension(Worker):
    """Further calls that every worker answers. Naming this class makes the worker import this module."""

    weight_transfer_engine: FolderTransferEngine

    def meet_learner(self, host: str, place: str) -> str | None:
        """Meet the learner at `place`, a `DirectPlace` in JSON. Return why that failed, or None.

        The method returns the reason instead of raising. After an error in one worker, vLLM reads the other
        workers' answers to that call as answers to the next call.
        """
        try:
            self.weight_transfer_engine.meet(host, DirectPlace.model_validate_json(place))
        except RuntimeError as error:
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FolderTransferEngine)
