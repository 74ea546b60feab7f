"""A stored run is judged again. The recorded tool calls run in a fresh sandbox, and nothing is sampled."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from episodes import sealed
from evaluation_rig import ABroker, EvalJob, spec

from headway_analysis.measures.tries import at_context_limit
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.records import EpisodeRecord, GroupRecord, Outcome, Purpose
from headway_api.sandbox_api import ToolReply
from headway_api.spec.candidate import CandidateRescore
from headway_api.status import ResolvedCandidate
from headway_api.store import FileStore
from headway_coordinator import spool
from headway_coordinator.agents.agent import EpisodeContext
from headway_coordinator.bounds import LOST_LIMIT
from headway_coordinator.dataset import Slot, position_of
from headway_coordinator.evaluation.rescore import Rescorer, calls, stored
from headway_coordinator.evaluation.units import Units
from headway_coordinator.faults import AgentError, CandidateError, InfraError
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.group import Plan

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
REPLY = {"role": "assistant", "content": "Refund all."}
CONVERSATION = [ASKED, CALL, ANSWER, REPLY]


OF_CANDIDATE = CandidateRescore(uri="s3://b/run", candidate="old")
OF_EPOCH = CandidateRescore(uri="s3://b/run", epoch=1)


class RecordingSandbox:
    """A sandbox that records tool calls and answers them by script."""

    def __init__(self, *answers: str) -> None:
        self.answers = [*answers]
        """Answers to the next calls, in order. Later calls get the recorded answer, "gold"."""
        self.called: list[tuple[str, dict[str, Any]]] = []

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        self.called.append((name, arguments))
        return ToolReply(content=self.answers.pop(0) if self.answers else "gold", done=False)


def episode(
    outcome: Outcome = Outcome.COMPLETED, messages: Sequence[dict[str, Any]] = CONVERSATION, turns: int = 2
) -> EpisodeRecord:
    """An episode whose last `turns` assistant messages the model sampled."""
    reward = None if outcome is Outcome.INFRA_ERROR else 0.5
    found = sealed("e-old-000003", reward=reward, outcome=outcome, turns=turns)
    return found.model_copy(update={"messages": list(messages)})


def stage(sandbox: RecordingSandbox, episode_id: str = "e-again-000003-0-0") -> EpisodeContext:
    session = Session(episode_id, seed=1, sampling=Sampling(0.0, 1.0, 8))
    return EpisodeContext(session, sandbox, Purpose.EVALUATION, {}, [ASKED], [])  # type: ignore[arg-type]


def rescorer(
    found: EpisodeRecord,
    *,
    reports_reward: bool = False,
    own_loop: bool = False,
    asked: CandidateRescore = OF_CANDIDATE,
) -> Rescorer:
    return Rescorer("again", asked, {(3, 0): found}, reports_reward, own_loop)


async def test_recorded_tool_calls_run_and_the_answer_is_judged() -> None:
    sandbox = RecordingSandbox()
    on = stage(sandbox)
    played = await rescorer(episode()).play(on)
    assert sandbox.called == [("get_case", {"id": "amber-fox"})]
    assert on.messages == CONVERSATION
    assert not played.truncated
    assert played.reported is None
    assert on.session.record == episode().turns
    assert on.session.taken == len(episode().turns)


async def test_rescore_keeps_truncation_and_the_agents_own_reward() -> None:
    played = await rescorer(episode(Outcome.TRUNCATED), reports_reward=True).play(stage(RecordingSandbox()))
    assert played.truncated
    assert played.reported == [0.5]


async def test_metrics_of_an_agents_own_reward_are_reported_again() -> None:
    found = episode().model_copy(update={"metrics": {"field_accuracy": 0.25}})
    played = await rescorer(found, reports_reward=True).play(stage(RecordingSandbox()))
    assert played.metrics == {"field_accuracy": 0.25}
    assert (await rescorer(found).play(stage(RecordingSandbox()))).metrics == {}


async def counted(before: EpisodeRecord, sandbox: RecordingSandbox) -> int:
    """Score the episode again. Returns how many tool answers differ from the recorded ones."""
    again, on = rescorer(before), stage(sandbox)
    with contextlib.suppress(AgentError):
        await again.play(on)
    record = sealed("e-again-000003").model_copy(update={"episode_id": on.session.episode_id})
    return again.counted(record).differing_answers


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR])
async def test_tool_answers_that_differ_from_recorded_are_counted(outcome: Outcome) -> None:
    assert await counted(episode(outcome), RecordingSandbox("gold")) == 0
    assert await counted(episode(outcome), RecordingSandbox("silver")) == 1


async def test_an_answer_in_parts_is_compared_by_its_text() -> None:
    parts = [{"type": "text", "text": "go"}, {"type": "text", "text": "ld"}]
    before = episode(messages=[ASKED, CALL, ANSWER | {"content": parts}, REPLY])
    assert await counted(before, RecordingSandbox("gold")) == 0
    assert await counted(before, RecordingSandbox("go")) == 1


async def test_call_is_compared_with_its_own_answer_if_an_id_repeats() -> None:
    messages = [ASKED, CALL, ANSWER, CALL, ANSWER | {"content": "silver"}, REPLY]
    before = episode(messages=messages, turns=3)
    assert await counted(before, RecordingSandbox("gold", "silver")) == 0
    assert await counted(before, RecordingSandbox("silver", "gold")) == 2


@pytest.mark.parametrize(
    ("outcome", "error"), [(Outcome.AGENT_ERROR, AgentError), (Outcome.INFRA_ERROR, InfraError)]
)
async def test_a_recorded_failure_stays_a_failure(outcome: Outcome, error: type[Exception]) -> None:
    with pytest.raises(error):
        await rescorer(episode(outcome)).play(stage(RecordingSandbox()))


async def test_a_row_that_the_run_lacks_ends_the_candidate() -> None:
    with pytest.raises(CandidateError, match="no episode of row 4, try 1") as raised:
        await rescorer(episode()).play(stage(RecordingSandbox(), "e-again-000004-1-0"))
    assert raised.value.field == "spec.candidates[again].rescore.uri"


async def test_a_row_that_training_did_not_reach_has_no_answer() -> None:
    again, missing = rescorer(episode(), asked=OF_EPOCH), "e-again-000004-1-0"
    with pytest.raises(InfraError, match="training has no episode of row 4, try 1 in epoch 1"):
        await again.play(stage(RecordingSandbox(), missing))
    assert again.lost == {missing}, "and it is not retried"
    assert again.environment_seed(7, missing) is None


@pytest.mark.parametrize(
    ("asked", "purpose", "group_id"),
    [
        ({"candidate": "old"}, Purpose.EVALUATION, "e-old-000003"),
        ({"step": 20}, Purpose.VALIDATION, "v000020-000003"),
        ({"epoch": 1}, Purpose.TRAIN, "t1-000014"),
    ],
)
def test_the_environment_has_the_seed_of_the_run(
    asked: dict[str, Any], purpose: Purpose, group_id: str
) -> None:
    """It is the seed that the run's own plan gave the episode."""
    position = position_of(group_id)
    plan = Plan(Slot(position, 1, 3), purpose, 20, {}, 2, Sampling(0.0, 1.0, 8), 7, candidate="old")
    assert plan.group_id == group_id
    again = rescorer(sealed(group_id), asked=CandidateRescore.model_validate({"uri": "s3://b/run"} | asked))
    assert again.environment_seed(7, "e-again-000003-0-0") == plan.task(0, 0).environment_seed


def test_episodes_of_one_epoch_are_read_by_row(tmp_path: Path) -> None:
    layout, store = Layout(f"file://{tmp_path}", "ns", "job", "uid"), FileStore()
    for epoch, position, row in ((0, 3, 2), (1, 14, 3), (1, 15, 0), (10, 103, 1)):
        group_id = Slot(position, epoch, row).group_id(Purpose.TRAIN)
        group = GroupRecord(
            group_id=group_id, purpose=Purpose.TRAIN, row=row, epoch=epoch, step=0,
            episodes=[sealed(group_id, index) for index in range(2)],
        )  # fmt: skip
        store.put(layout.train_group(group_id), spool.encode(group))
    found = stored("again", CandidateRescore(uri=layout.root, epoch=1), store)
    assert {place: each.group_id for place, each in found.items()} == {
        (3, 0): "t1-000014",
        (3, 1): "t1-000014",
        (0, 0): "t1-000015",
        (0, 1): "t1-000015",
    }
    with pytest.raises(CandidateError, match="name the folder of a run, and one of its") as raised:
        stored("again", CandidateRescore(uri=layout.root, epoch=2), store)
    assert raised.value.reason == "RunMissing"


async def test_another_dataset_ends_the_candidate() -> None:
    other = [{"role": "user", "content": "Handle case blue-owl."}, *CONVERSATION[1:]]
    with pytest.raises(CandidateError, match="name the dataset of the run") as raised:
        await rescorer(episode(messages=other)).play(stage(RecordingSandbox()))
    assert raised.value.reason == "RowsDiffer"


def test_calls_that_no_tool_answered_are_left_out() -> None:
    assert [*calls(episode(messages=[ASKED, CALL, REPLY]))] == []


async def test_example_calls_of_the_environment_are_not_carried_out() -> None:
    """The environment begins with a worked example, whose call has the same id as the model's first call."""
    function = {"name": "refund", "arguments": '{"id": "red-cat"}'}
    example = CALL | {"tool_calls": [CALL["tool_calls"][0] | {"function": function}]}  # type: ignore[index]
    opening = [ASKED, example, ANSWER | {"content": "done"}, {"role": "assistant", "content": "Refunded."}]
    before, sandbox = episode(messages=[*opening, *CONVERSATION]), RecordingSandbox("gold")
    again = rescorer(before)
    await again.play(stage(sandbox))
    assert sandbox.called == [("get_case", {"id": "amber-fox"})]
    assert [*again.differing.values()] == [0]


@pytest.mark.parametrize(("timed_out", "token_limited"), [(True, False), (False, True), (False, False)])
def test_a_truncated_episode_keeps_the_recorded_reason(timed_out: bool, token_limited: bool) -> None:
    before = episode(Outcome.TRUNCATED).model_copy(
        update={"timed_out": timed_out, "token_limited": token_limited}
    )
    record = sealed("e-again-000003", outcome=Outcome.TRUNCATED)
    again = rescorer(before).counted(record)
    assert (again.timed_out, again.token_limited) == (timed_out, token_limited)
    assert at_context_limit(again, 6) is at_context_limit(before, 6)
    lost = rescorer(before).counted(
        sealed("e-again-000003", reward=None).model_copy(update={"timed_out": True})
    )
    assert lost.timed_out, "the new sandbox was too slow"


async def test_an_agent_with_its_own_loop_may_change_the_prompt() -> None:
    wrapped = [{"role": "user", "content": "Task: Handle case amber-fox. Think first."}, *CONVERSATION[1:]]
    sandbox = RecordingSandbox()
    await rescorer(episode(messages=wrapped), own_loop=True).play(stage(sandbox))
    assert sandbox.called == [("get_case", {"id": "amber-fox"})]


@pytest.mark.parametrize("step", [None, 20])
def test_episodes_of_evaluation_and_validation_can_be_read(tmp_path: Path, step: int | None) -> None:
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


def group_of(
    group_id: str, *rewards: float | None, candidate: str | None = "old", step: int = 0
) -> GroupRecord:
    """A stored group of one row. A reward of None makes an InfraError."""
    purpose = Purpose.VALIDATION if candidate is None else Purpose.EVALUATION
    episodes = [sealed(group_id, index, reward=reward) for index, reward in enumerate(rewards)]
    return GroupRecord(
        group_id=group_id, purpose=purpose, row=0, epoch=0, step=step, candidate=candidate, episodes=episodes
    )


def kept(folder: Path, groups: Sequence[GroupRecord]) -> Layout:
    """The layout of a run that stored these groups."""
    layout = Layout(f"file://{folder}", "ns", "earlier", "uid")
    for group in groups:
        spool.Spool(FileStore(), layout).put(group)
    return layout


@pytest.mark.parametrize("step", [None, 20])
def test_rows_without_a_score_belong_to_the_run(tmp_path: Path, step: int | None) -> None:
    candidate, ids = ("old", "e-old") if step is None else (None, f"v{step:06d}")
    mine = {"candidate": candidate, "step": step or 0}
    layout = kept(
        tmp_path,
        [
            group_of(f"{ids}-000000", 1.0, None, **mine),  # type: ignore[arg-type]
            group_of(f"{ids}-000001", None, None, **mine),  # type: ignore[arg-type]
            group_of(f"{ids}-000002", None, None, **mine),  # type: ignore[arg-type]
            group_of(f"{ids}-000002", 1.0, 0.0, **mine),  # type: ignore[arg-type]
            group_of("e-old-b-000003", None, candidate="old-b"),
            group_of("v000021-000004", None, candidate=None, step=21),
        ],
    )
    found = stored("again", CandidateRescore(uri=layout.root, candidate=candidate, step=step), FileStore())
    lost = {place for place, each in found.items() if each.outcome is Outcome.INFRA_ERROR}
    assert set(found) == {(row, index) for row in range(3) for index in range(2)}
    assert lost == {(0, 1), (1, 0), (1, 1)}


async def test_run_with_unanswered_rows_is_judged_to_its_end(tmp_path: Path) -> None:
    """A row without an answer in the run has none now. It is not retried, and does not end the candidate."""
    rows = LOST_LIMIT + 3
    answers = [(1.0, None) if row in (0, rows - 1) else (None, None) for row in range(rows)]
    layout = kept(tmp_path, [group_of(f"e-old-{row:06d}", *each) for row, each in enumerate(answers)])
    asked = {"name": "again", "rescore": {"uri": layout.root, "candidate": "old"}}
    job = EvalJob(tmp_path, spec(candidates=[asked]), rows=rows)
    evaluation, broker = await job.coordinator(), ABroker()
    resolved = (ResolvedCandidate(name="again", kind="Rescore"),)
    of = EvalConfig(name="job", namespace="ns", uid="uid", spec=job.spec, candidates=resolved)
    state, store, no = evaluation.state, job.store, cast(Any, None)
    units = Units(of, state, no, "key", store, tmp_path, cast(Any, broker), no, no, no, no)
    await evaluation.run([*units.all()])
    again = evaluation.state.candidates["again"]
    assert (again.stage, again.message) == ("Complete", None)
    scored = [reward is not None for each in answers for reward in each]
    assert [one.scored for one in again.all_tries] == scored
    assert len(broker.leased) == 2 * rows, "no attempt follows another"


def test_a_missing_run_ends_the_candidate(tmp_path: Path) -> None:
    asked = CandidateRescore(uri=f"file://{tmp_path}", candidate="old")
    with pytest.raises(CandidateError, match="there are no episodes at") as raised:
        stored("again", asked, FileStore())
    assert raised.value.reason == "RunMissing"


@pytest.mark.parametrize("harm", ["cut", "bits", "id", "text"])
def test_a_damaged_run_ends_only_its_candidate(tmp_path: Path, harm: str) -> None:
    layout = kept(tmp_path, [group_of("e-old-000001" if harm != "id" else "e-old-one", 1.0)])
    [uri] = FileStore().list(layout.evaluation_groups("old"))
    whole = FileStore().get(uri)
    damaged = {"cut": whole[:-20], "bits": whole[:10] + b"\xff" * 20 + whole[30:], "id": whole, "text": b"{}"}
    FileStore().put(uri, damaged[harm])
    with pytest.raises(CandidateError, match="holds no episodes that can be read") as raised:
        stored("again", CandidateRescore(uri=layout.root, candidate="old"), FileStore())
    assert (raised.value.reason, raised.value.field) == (
        "RunUnreadable",
        "spec.candidates[again].rescore.uri",
    )
