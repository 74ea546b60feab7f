"""Which role holds which key, and how a process reads its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from role_keys import KEYS, written

from headway_api import keys, names
from headway_api.exits import JobError
from headway_api.keys import HELD_BY, Key

PARTIES = {
    Key.LEARNER_TO_COORDINATOR: {names.LEARNER, names.COORDINATOR},
    Key.COORDINATOR_TO_ROLLOUT: {names.COORDINATOR, names.ROLLOUT},
    Key.COORDINATOR_TO_JUDGE: {names.JUDGE},  # the coordinator has this key among the tokens of other judges
    Key.COORDINATOR_TO_BROKER: {names.COORDINATOR, names.BROKER},
    Key.ROLLOUT_TO_LEARNER: {names.ROLLOUT, names.LEARNER},
    Key.LEASES: {names.BROKER},
    Key.CHECKPOINTS: {names.LEARNER},
}


@pytest.mark.parametrize("key", Key)
def test_a_key_is_held_by_its_parties_alone(key: Key) -> None:
    assert {role for role in HELD_BY if key in HELD_BY[role]} == PARTIES[key]


@pytest.mark.parametrize("role", HELD_BY)
def test_a_process_reads_only_the_keys_of_its_role(role: str, tmp_path: Path) -> None:
    for key in Key:
        written(tmp_path, role).joinpath(key).write_text(KEYS[key] + "\n")
    found = keys.load({names.ENV_KEYS: str(tmp_path / "keys")}, role)
    assert found == {key: KEYS[key] for key in HELD_BY[role]}


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_key_that_is_missing_or_empty_is_an_error(content: str | None, tmp_path: Path) -> None:
    """A server with an empty key would accept every request without a key."""
    file = written(tmp_path, names.BROKER) / Key.COORDINATOR_TO_BROKER
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(JobError, match=str(file)) as refused:
        keys.load({names.ENV_KEYS: str(file.parent)}, names.BROKER)
    assert refused.value.termination.reason == "ConfigUnreadable"


@pytest.mark.parametrize("role", [role for role in names.ROLES if HELD_BY[role]])
def test_a_job_begun_with_one_token_goes_on_with_it(role: str, tmp_path: Path) -> None:
    folder = written(tmp_path, role)
    (folder / names.TOKEN_KEY).write_text("the token of all\n")
    found = keys.load({names.ENV_KEYS: str(folder)}, role)
    assert found == dict.fromkeys(HELD_BY[role], "the token of all")
