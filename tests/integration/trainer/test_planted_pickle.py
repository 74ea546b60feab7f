"""Whatever a file holds, DeepSpeed reads it as data. This is the second defence, after the signatures."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from tries.planted import Planted

from headway_trainer.engine import DATA_ALONE, data_alone

pytestmark = pytest.mark.integration


def test_deepspeed_runs_nothing_that_lies_in_a_checkpoint(tmp_path: Path) -> None:
    mark, file = tmp_path / "code ran", tmp_path / "state.pt"
    torch.save({"module": Planted(os.mkdir, str(mark))}, file)
    with data_alone():
        from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            TorchCheckpointEngine().load(str(file))
    assert not mark.exists()
    assert DATA_ALONE not in os.environ
    TorchCheckpointEngine().load(str(file))
    assert mark.exists(), "DeepSpeed by itself runs it"


def test_an_enum_is_written_as_data(tmp_path: Path) -> None:
    """By default Python 3.11 would pickle it as a call of getattr, which could reach any attribute."""
    file = tmp_path / "state.pt"
    with data_alone():
        from deepspeed.runtime.zero.config import ZeroStageEnum

        torch.save({"stage": ZeroStageEnum.weights}, file)
        assert torch.load(file, weights_only=False) == {"stage": ZeroStageEnum.weights}
    assert torch.serialization.get_unsafe_globals_in_checkpoint(str(file)) == [
        "deepspeed.runtime.zero.config.ZeroStageEnum"
    ]
