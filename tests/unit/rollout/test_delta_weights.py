"""A server that loads deltas, some of them damaged. The engine is scripted, and the files are real."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_weights import Server
from versions import chained, delta, path, signed_again, tensors, version, whole

from headway_api.records import WeightsManifest
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, MODEL_FILE
from headway_rollout.weights.chain import after


@pytest.fixture
async def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def model_bytes(store: Path, step: int) -> bytes:
    """The bytes of the model file that a full publication of this step would have."""
    return path(whole(store / "plain", step), MODEL_FILE).read_bytes()


async def test_a_server_with_the_previous_version_fetches_only_a_delta(
    server: Server, tmp_path: Path
) -> None:
    manifests = chained(tmp_path, 1, 3)
    assert (await server.take(manifests[0])).ready
    assert server.store.models() == [f"000001/{MODEL_FILE}"]
    for manifest in manifests[1:]:
        state = await server.take(manifest)
        assert (state.version, state.ready, state.error) == (manifest.version, True, None)
        assert server.store.models() == [f"{manifest.version.step:06d}/{DELTA_FILE}"]
    assert server.engine.read == [model_bytes(tmp_path, step) for step in (1, 2, 3)]
    assert server.engine.calls[-3:] == ["pause", "update 0.3", "resume"]
    assert server.held() == {"0.3"}, "no more than one model stays on the disk"


async def test_a_new_server_applies_the_chain_from_the_full_version(server: Server, tmp_path: Path) -> None:
    *_, newest = chained(tmp_path, 1, 4)
    assert (await server.take(newest)).ready
    assert server.store.models() == [
        *(f"00000{step}/{DELTA_FILE}" for step in (2, 3, 4)),
        f"000001/{MODEL_FILE}",
    ]
    assert server.engine.read == [model_bytes(tmp_path, 4)]
    assert sorted(file.name for file in (server.cache / "0.4").iterdir()) == [DIGESTS_FILE, MODEL_FILE]


async def test_a_server_that_missed_versions_applies_what_it_missed(server: Server, tmp_path: Path) -> None:
    manifests = chained(tmp_path, 1, 4)
    await server.take(manifests[1])
    server.store.models()
    assert (await server.take(manifests[3])).ready
    assert server.store.models() == [f"000003/{DELTA_FILE}", f"000004/{DELTA_FILE}"]


async def test_an_old_server_starts_at_the_last_full_version(server: Server, tmp_path: Path) -> None:
    await server.take(whole(tmp_path, 1))
    _, second = chained(tmp_path, 3, 4)
    server.store.models()
    assert (await server.take(second)).ready
    assert server.store.models() == [f"000004/{DELTA_FILE}", f"000003/{MODEL_FILE}"]


async def test_a_damaged_copy_is_rebuilt_from_the_full_version(server: Server, tmp_path: Path) -> None:
    manifests = chained(tmp_path, 1, 3)
    await server.take(manifests[1])
    data = bytearray(server.copy(2).read_bytes())
    data[-1] ^= 1
    server.copy(2).write_bytes(data)
    server.store.models()
    state = await server.take(manifests[2])
    assert (state.version, state.ready, state.error) == (version(3), True, None)
    assert f"000001/{MODEL_FILE}" in server.store.models()
    assert server.engine.read[-1] == model_bytes(tmp_path, 3)


@pytest.mark.parametrize("name", [DELTA_FILE, DIGESTS_FILE])
@pytest.mark.parametrize("fault", ["damaged", "missing"])
@pytest.mark.parametrize("joins", [True, False], ids=["joins", "has the version before"])
async def test_a_bad_link_leaves_the_engine_unchanged_until_repaired(
    server: Server, tmp_path: Path, name: str, fault: str, joins: bool
) -> None:
    manifests = chained(tmp_path, 1, 3)
    before = await server.take(whole(tmp_path / "other", 0) if joins else manifests[1])
    read = len(server.engine.read)
    file = path(manifests[2], name)
    kept = file.read_bytes()
    server.store.models()
    if fault == "damaged":
        file.write_bytes(kept[:-1] + b"?")
    else:
        file.unlink()
    state = await server.take(manifests[2])
    assert (state.version, state.ready) == (before.version, True)
    assert state.reason == ("UpdateFailed" if fault == "missing" else "VerificationFailed")
    assert state.error
    assert name in state.error
    assert len(server.engine.read) == read, "the engine must not see it"
    assert server.held() == {str(before.version)}, "nothing of it stays on the disk"
    assert f"000001/{MODEL_FILE}" not in server.store.models(), "asked again and again, it must cost little"
    assert not server.slots.failed.done()
    file.write_bytes(kept)
    again = await server.take(manifests[2])
    assert (again.version, again.ready, again.error) == (version(3), True, None)
    assert server.engine.read[-1] == model_bytes(tmp_path, 3)


async def test_a_delta_whose_tensor_differs_from_its_digest_is_refused(
    server: Server, tmp_path: Path
) -> None:
    """A faulty learner could write such a delta. Its files match the digests in its manifest."""
    first = whole(tmp_path, 1)
    wrong = delta(tmp_path, 2, first, tensors(5))
    right = delta(tmp_path / "right", 2, first)
    path(wrong, DELTA_FILE).write_bytes(path(right, DELTA_FILE).read_bytes())
    await server.take(first)
    state = await server.take(signed_again(wrong))
    assert (state.version, state.ready, state.reason) == (version(1), True, "VerificationFailed")
    assert "w: expected sha256" in (state.error or "")
    assert len(server.engine.read) == 1
    healed = await server.take(whole(tmp_path, 3))
    assert (healed.version, healed.ready, healed.error) == (version(3), True, None), "a full version heals it"


async def test_a_delta_of_another_base_is_refused(server: Server, tmp_path: Path) -> None:
    first, second = whole(tmp_path, 1), whole(tmp_path, 2)
    built_on_second = delta(tmp_path, 3, second)
    lies = built_on_second.model_copy(update={"chain": [first.link]})
    await server.take(first)
    state = await server.take(lies)
    assert (state.version, state.ready, state.reason) == (version(1), True, "VerificationFailed")


async def test_after_a_failed_canary_a_new_engine_applies_the_chain(server: Server, tmp_path: Path) -> None:
    manifests = chained(tmp_path, 1, 2)
    await server.take(manifests[0])
    right = server.engine.answers
    server.engine.answers = lambda context: -9.0
    state = await server.take(manifests[1])
    assert (state.version, state.ready, state.reason) == (None, False, "VerificationFailed")
    assert server.slots.failed.done()
    server.engine.answers = right
    server.restart()
    server.store.models()
    assert (await server.take(manifests[1])).ready
    assert server.store.models() == [f"000002/{DELTA_FILE}", f"000001/{MODEL_FILE}"]


async def test_an_engine_that_refuses_a_delta_is_no_longer_trusted(server: Server, tmp_path: Path) -> None:
    manifests = chained(tmp_path, 1, 2)
    await server.take(manifests[0])
    server.engine.refuses = True
    state = await server.take(manifests[1])
    assert (state.version, state.ready, state.reason) == (None, False, "UpdateFailed")
    assert server.slots.failed.done()


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([1], "names no safetensors file of version 0.2"),
        ([0, 0], "version 0.1 lacks weights.delta"),
    ],
)
async def test_an_impossible_chain_is_refused(
    server: Server, tmp_path: Path, chain: list[int], message: str
) -> None:
    manifests = chained(tmp_path, 1, 3)
    broken = manifests[2].model_copy(update={"chain": [manifests[at].link for at in chain]})
    state = await server.take(broken)
    assert message in (state.error or "")


def test_only_a_delta_has_a_chain(tmp_path: Path) -> None:
    first, second = chained(tmp_path, 1, 2)
    for wrong in (first.model_dump() | {"kind": "delta"}, second.model_dump() | {"kind": "full"}):
        with pytest.raises(ValueError, match="with a chain of"):
            WeightsManifest.model_validate(wrong)


def test_the_links_to_apply_start_after_the_held_version(tmp_path: Path) -> None:
    newest = chained(tmp_path, 1, 4)[-1]
    links = [*newest.chain, newest.link]
    assert after(version(2), links) == links[2:]
    assert after(version(1), links) == links[1:]
    for held in (None, version(0), version(2, incarnation=1)):
        assert after(held, links) is None
