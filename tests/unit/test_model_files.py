"""Files of a model, which a stranger may have written: an unreadable file is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from headway_api import base_model, warm_start
from headway_api.bounds import OutOfBoundsError
from headway_api.exits import JobError
from headway_api.records import PolicyVersion, WeightsManifest
from headway_api.store import FileStore, upload_folder
from headway_api.weights_format import InvalidSafetensorsError, read_spans
from headway_coordinator.trajectory.render import model_type
from headway_rollout.model import read_config
from headway_rollout.weights.checks import UnusableManifestError
from headway_rollout.weights.loaders import LoraLoader

if TYPE_CHECKING:
    from headway_rollout.engine import Engine

DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000
WRONG = {
    "deep": (DEEP, "nested more than 32 levels deep"),
    "large": (f'{{"a": "{"x" * base_model.MAX_CONFIG}"}}', "more than 4194304 bytes"),
    "list": ("[]", "not a JSON object"),
    "cut": ('{"a": ', "not JSON"),
}
each = pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG)


@each
def test_a_configuration_out_of_bounds_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(OutOfBoundsError, match=says):
        base_model.read_config(path)


@each
def test_a_model_that_cannot_be_read_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    for read in (read_config, model_type):
        with pytest.raises(JobError, match=rf"config\.json .*{says}.*; name a folder") as caught:
            read(tmp_path)
        termination = caught.value.termination
        assert (termination.reason, termination.field) == ("ModelNotLoadable", "spec.model.base")


@each
def test_an_unreadable_warm_start_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(JobError, match=rf"config\.json cannot be read \(.*{says}.*; write the folder again"):
        warm_start._read(path)


@each
async def test_an_adapter_that_cannot_be_read_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/adapter_config.json").write_text(text)
    store, uri = FileStore(), f"file://{tmp_path}/kept"
    files = upload_folder(store, tmp_path / "there", uri)
    manifest = WeightsManifest(
        version=PolicyVersion(incarnation=0, step=0), kind="base", uri=uri, files=files
    )
    loader = LoraLoader(cast("Engine", None), 8)  # fetching uses no engine
    with pytest.raises(UnusableManifestError, match=rf"adapter_config\.json is not valid JSON: .*{says}"):
        await loader.fetch(store, manifest, tmp_path / "here")


def test_infinity_in_a_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bamba", "time_step_limit": [0.0, Infinity]}')
    assert model_type(tmp_path) == "bamba"
    assert read_config(tmp_path)["time_step_limit"] == [0.0, float("inf")]


def test_an_endless_header_of_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode())
    with pytest.raises(
        InvalidSafetensorsError, match=r"the header of model\.safetensors cannot be read: nested more"
    ):
        read_spans(path)
