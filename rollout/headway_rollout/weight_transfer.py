"""Runs inside vLLM: a weight-transfer engine that reads a checkpoint from a folder, or from the learner.

Only this module and `cpu_lora` know vLLM's internals. `launch.py` names `WorkerExtension` as the worker
extension, so every worker imports this module before it creates its transfer engine.

vLLM's reload packs each layer's weights again as it loads them. One layer is never loaded: an output head
tied to the embeddings. On a GPU the head shares their storage and needs nothing. On a CPU its product runs on
a packed copy that was made once. So the head would keep the old weights while every request answers 200.
`finish_weight_update` packs it again.

Each tensor is compared with the learner's digest as the model receives it. Some parameters remain unchanged
in the model (the base model shows which); they are compared again in the model afterwards. So the engine's
own process has checked that it holds this version. That works in bfloat16 too, where a canary cannot
distinguish versions.
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
"""Tensors that are hashed while earlier ones are loaded."""
HASHED_AHEAD_DIRECT = 2
"""Tensors that are hashed while earlier ones are loaded, if they arrive in the device's memory."""


class WrongTensorError(Exception):
    """A tensor is not the one that the learner published."""


@dataclass
class NoInit(WeightTransferInitInfo):
    """No peer has to be met before the first update."""


@dataclass
class Folder(WeightTransferUpdateInfo):
    """A whole checkpoint in Hugging Face layout."""

    folder: str
    files: list[str] = field(default_factory=list)
    digests: str | None = None
    """File with the tensors' digests; without it the tensors are not checked."""
    header: str | None = None
    """File with the `DirectHeader` of what the learner sends, instead of files."""


class FolderTransferEngine(WeightTransferEngine[NoInit, Folder]):
    """Loads a folder's safetensors files, or what the learner sends, into the live model."""

    init_info_cls = NoInit
    update_info_cls = Folder
    _receiver: Receiver | None = None
    """The learner that was joined and has sent nothing yet."""
    _expected: Mapping[str, str] = {}
    """Digests of the tensors of the current update."""
    _dtypes: Mapping[str, torch.dtype] = {}
    """Number formats in which they were received."""
    _kept: frozenset[str] | None = None
    """Names of parameters that the model holds exactly as in a checkpoint; None before the first update."""

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to set up."""

    def meet(self, host: str, place: DirectPlace) -> None:
        """Meet the learner, together with the other workers of this engine; the model is unchanged.

        Raises:
            RuntimeError: the learner, or another worker, did not come.
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
        """Load the tensors, a few in memory at a time."""
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
        """Move the loaded weights to where the kernels read them."""
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            _pack_output_heads(self.model)
        kept = {name: self._dtypes[name] for name in self._kept or () if name in self._dtypes}
        check_kept(self.model, kept, self._expected)

    def shutdown(self) -> None:
        """Release a learner that was joined."""
        self._receiver = None


def _tensors(
    folder: Path, files: list[str], of: Collection[str] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of some files, or those named in `of`; each is read only when it is needed."""
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
    """Each tensor of `tensors` after its digest was checked; some are hashed ahead of use.

    `dtypes` is filled with the number format of each.

    Raises:
        WrongTensorError: one is not what it should be, or they are not all there.
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
    """Parameters that equal, bit for bit, the checkpoint's tensor of their name, in their own format.

    As a rule these are embeddings and norms, and on a GPU all that is neither fused nor split over workers.
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
    """Raise `WrongTensorError` if a parameter that is kept unchanged does not have the expected digest.

    `kept` has the number format in which each was received. A parameter held in another format has other
    bytes, and is skipped.
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
    """Raise `WrongTensorError` if a digest is not the expected one."""
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

        It returns the reason instead of raising. After one worker's error, vLLM mistakes the others' answers
        to that call for answers to the next.
        """
        try:
            self.weight_transfer_engine.meet(host, DirectPlace.model_validate_json(place))
        except RuntimeError as error:
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FolderTransferEngine)
