"""A stored run is judged again: the recorded tool calls run in a fresh sandbox, and nothing is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from episodes import sealed

from headway_api.artifacts import Layout
from headway_api.records import EpisodeRecord, GroupRecord, Outcome, Purpose
from headway_api.sandbox_api import ToolReply
from headway_api.spec.evaluation import CandidateRescore
from headway_api.store import FileStore
from headway_coordinator import spool
from headway_coordinator.agents.agent import Stage
from headway_coordinator.evaluation.rescore import Rescorer, calls, stored
from headway_coordinator.faults import AgentFault, CandidateFault, InfraFault
from headway_coordinator.gateway.core import Sampling, Session

ASKED = {"role": "user", "content": "Handle case amber-fox."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call-0-0",
            "type": "function",
            "function": {"name": "get_case", "arguments": '{"id": "amber-fox"}'},
        }
    ],
}
ANSWER = {"role": "tool", "tool_call_id": "call-0-0", "content": "gold"}
SAID = {"role": "assistant", "content": "Refund all."}
CONVERSATION = [ASKED, CALL, ANSWER, SAID]


class RecordingSandbox:
    """Carries out tool calls, and remembers them."""

    def __init__(self) -> None:
        self.called: list[tuple[str, dict[str, Any]]] = []

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        self.called.append((name, arguments))
        return ToolReply(content="gold", done=False)


def episode(
    outcome: Outcome = Outcome.COMPLETED, messages: Sequence[dict[str, Any]] = CONVERSATION
) -> EpisodeRecord:
    reward = None if outcome is Outcome.INFRA_ERROR else 0.5
    found = sealed("e-old-000003", reward=reward, outcome=outcome)
    return found.model_copy(update={"messages": list(messages)})


def stage(sandbox: RecordingSandbox, episode_id: str = "e-again-000003-0-0") -> Stage:
    session = Session(episode_id, seed=1, sampling=Sampling(0.0, 1.0, 8))
    return Stage(session, sandbox, Purpose.EVALUATION, {}, [ASKED], [])  # type: ignore[arg-type]


def rescorer(found: EpisodeRecord, *, reports_reward: bool = False) -> Rescorer:
    return Rescorer("again", {(3, 0): found}, reports_reward)


async def test_the_tool_calls_are_carried_out_and_the_words_are_judged() -> None:
    sandbox = RecordingSandbox()
    on = stage(sandbox)
    played = await rescorer(episode()).play(on)
    assert sandbox.called == [("get_case", {"id": "amber-fox"})]
    assert on.messages == CONVERSATION
    assert not played.truncated
    assert played.reported is None
    assert on.session.record == episode().turns
    assert on.session.taken == len(episode().turns)


async def test_a_truncated_episode_stays_one_and_an_agents_own_reward_is_told_again() -> None:
    played = await rescorer(episode(Outcome.TRUNCATED), reports_reward=True).play(stage(RecordingSandbox()))
    assert played.truncated
    assert played.reported == [0.5]


@pytest.mark.parametrize(
    ("outcome", "error"), [(Outcome.AGENT_ERROR, AgentFault), (Outcome.INFRA_ERROR, InfraFault)]
)
async def test_a_recorded_failure_stays_one(outcome: Outcome, error: type[Exception]) -> None:
    with pytest.raises(error):
        await rescorer(episode(outcome)).play(stage(RecordingSandbox()))


async def test_a_row_that_the_run_lacks_ends_the_candidate() -> None:
    with pytest.raises(CandidateFault, match="no episode of row 4, try 1") as raised:
        await rescorer(episode()).play(stage(RecordingSandbox(), "e-again-000004-1-0"))
    assert raised.value.field == "spec.candidates[again].rescore.uri"


async def test_another_dataset_ends_the_candidate() -> None:
    other = [{"role": "user", "content": "Handle case blue-owl."}, *CONVERSATION[1:]]
    with pytest.raises(CandidateFault, match="name the dataset that the run was made on") as raised:
        await rescorer(episode(messages=other)).play(stage(RecordingSandbox()))
    assert raised.value.reason == "RowsDiffer"


def test_calls_that_no_tool_answered_are_left_out() -> None:
    unanswered = [ASKED, CALL, SAID]
    assert [*calls(unanswered)] == []


@pytest.mark.parametrize("step", [None, 20])
def test_episodes_of_an_evaluation_and_of_a_validation_can_be_read(tmp_path: Path, step: int | None) -> None:
    layout, store = Layout(f"file://{tmp_path}", "ns", "job", "uid"), FileStore()
    purpose = Purpose.EVALUATION if step is None else Purpose.VALIDATION
    group = GroupRecord(
        group_id="e-old-000003", purpose=purpose, row=3, epoch=0, step=step or 0,
        candidate="old" if step is None else None, episodes=[episode()],
    )  # fmt: skip
    where = (
        layout.evaluation_group("old", "e-old-000003")
        if step is None
        else layout.validation_group(step, "v000020-000003")
    )
    store.put(where, spool.encode(group))
    asked = CandidateRescore(uri=layout.root, candidate="old" if step is None else None, step=step)
    assert set(stored("again", asked, store)) == {(3, 0)}


def test_a_run_that_is_not_there_ends_the_candidate(tmp_path: Path) -> None:
    asked = CandidateRescore(uri=f"file://{tmp_path}", candidate="old")
    with pytest.raises(CandidateFault, match="no episodes lie at") as raised:
        stored("again", asked, FileStore())
    assert raised.value.reason == "RunMissing"
