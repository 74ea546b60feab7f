"""The rollout server with deltas in bfloat16, where one step changes too little for a canary to notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moving_model import EMBEDDING, MovingModel, engine_digests
from rollout_server import RolloutServer, version
from tiny_model import write_model

from headway_api.exits import RETRIABLE
from headway_api.records import TensorDigests, WeightsManifest
from headway_api.store import digest
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, MODEL_FILE
from headway_trainer.publish.backends import DeltaPublisher, FilePublisher

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]


class Trained(MovingModel):
    """A trained model that is published both as deltas and as whole weights."""

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder, base)
        self._deltas = DeltaPublisher(
            self.model, base, folder / "deltas", full_every=100, whole=lambda step: False
        )
        self._files = FilePublisher(self.model, base, folder / "files")

    def delta(self, step: int) -> WeightsManifest:
        return self.publish(self._deltas, step)

    def whole(self, step: int) -> WeightsManifest:
        return self.publish(self._files, step)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base"), seed=0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"), base)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[RolloutServer]:
    spec = {"full": {}, "dtype": "bfloat16"}
    with RolloutServer(tmp_path_factory.mktemp("server"), base, model=spec) as server:
        server.wait_ready()
        yield server


def published_digests(trained: Trained, step: int) -> dict[str, str]:
    text = (trained.store / f"{step:06d}" / DIGESTS_FILE).read_bytes()
    return TensorDigests.model_validate_json(text).tensors


def test_tensors_the_engine_keeps_as_is_match_the_base_model(server: RolloutServer, trained: Trained) -> None:
    """Without such tensors, nothing could be read back and compared after an update."""
    trained.whole(0)
    found, base = engine_digests(server), published_digests(trained, 0)
    assert {EMBEDDING, "model.norm.weight"} <= {name for name in base if base[name] == found.get(name)}


def test_deltas_arrive_in_the_engines_own_tensors(server: RolloutServer, trained: Trained) -> None:
    for step in (1, 2, 3):
        trained.step()
        manifest = trained.delta(step)
        assert manifest.kind == ("full" if step == 1 else "delta")
        state = server.post(manifest)
        assert (state.ready, state.version, state.error) == (True, version(step), None)
        found, expected = engine_digests(server), published_digests(trained, step)
        both = found.keys() & expected.keys()
        assert {EMBEDDING, "model.norm.weight"} <= both
        assert found[EMBEDDING] == expected[EMBEDDING]
        before = published_digests(trained, step - 1) if step > 1 else {}
        assert before.get(EMBEDDING) != expected[EMBEDDING], "a step must move it"
    whole = [file.name for file in (server.cache / "weights").rglob("*.safetensors")]
    assert whole == [MODEL_FILE], "one model on the disk, and no delta"
    assert not list((server.cache / "weights").rglob(DELTA_FILE))


def test_one_unit_in_the_last_place_ends_the_server(server: RolloutServer, trained: Trained) -> None:
    """A delta has the weights of the step before under this step's digests.

    The canary of bfloat16 would not notice.
    """
    stale = trained.whole(4)
    trained.step()
    trained.whole(5)
    folder = trained.store / "000004"
    (folder / DIGESTS_FILE).write_bytes((trained.store / "000005" / DIGESTS_FILE).read_bytes())
    files = [digest(path) for path in sorted(folder.iterdir())]
    state = server.post(stale.model_copy(update={"files": files}))
    assert (state.version, state.ready, state.reason) == (None, False, "VerificationFailed"), state.error
    assert "the learner published" in (state.error or "")
    assert server.process.wait(60) == RETRIABLE
