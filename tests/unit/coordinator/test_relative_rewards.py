"""An environment may reward a group's episodes relative to each other, in one call.

If it fails, the group fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import judge_rig
import pytest
from endpoint_service import fails, says
from endpoint_service import serving as endpoint
from episodes import a_group
from lease_service import LeaseService, lease_service
from scripted_model import ANSWER, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_analysis.billing.segments import fold, total
from headway_api.records import GroupRecord, Purpose, UsageClass
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Episodes, Rules
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.judges import judge as asking
from headway_coordinator.judges.answering import Judges
from headway_coordinator.ledger import events
from headway_coordinator.recurring import Recurring
from headway_coordinator.relative import RelativeJudge
from headway_coordinator.sandboxes import Broker
from headway_coordinator.trajectory.render import choose

RANKED = """
from headway_sandbox.environment import Environment, Observation, tool, user

class Ranked(Environment):
    def reset(self, row, seed):
        self.row = row
        return Observation([user("?")])

    @tool
    def look_up(self, key: str) -> str:
        '''Look it up.'''
        return "gold"

    def reward(self, transcript):
        return 0.25, {"alone": 1.0}

    def score(self, transcript):
        return 1.0

    async def group_reward(self, transcripts):
        print("asked for a group")
        return eval(self.row["group"])

class Alone(Ranked):
    group_reward = None
"""
RANKS = "[(n / 10, {'rank': n}) for n, _ in enumerate(transcripts)]"
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"key": "x"}}\n</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("tok"), QWEN3_TEMPLATE)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "backoff", lambda tries: 0.0)


@dataclass
class Rig:
    run: groups.Run
    relative: RelativeJudge
    leases: LeaseService
    faults: Recurring


@asynccontextmanager
async def rig(
    tok: Any, folder: Path, judges: Judges | None = None, entrypoint: str = "ranked:Ranked"
) -> AsyncIterator[Rig]:
    (folder / "ranked.py").write_text(RANKED)
    async with AsyncExitStack() as stack:
        leases = await stack.enter_async_context(lease_service(folder, entrypoint, "t"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        agent = Builtin(
            Gateway(choose(tok, "qwen3"), ScriptedModel(tok, [CALL, ANSWER]), 1000, 40.0), 4, None
        )
        rules, broker = Rules(40.0, 120, (-1.0, 1.0)), Broker(http, leases.url, "t", "me")
        faults = Recurring()
        relative = RelativeJudge(rules, broker, judges or Judges(), faults)
        episodes = Episodes(rules, agent, broker, Router(), faults.note, judges, relative.learn)
        yield Rig(episodes.run, relative, leases, faults)


async def ran(rig: Rig, reward: str = RANKS, retries: int = 0, **changes: Any) -> GroupRecord:
    plan = replace(judge_rig.plan(size=3, group=reward), sampling=Sampling(1.0, 1.0, 64), **changes)
    return await groups.run(
        plan, rig.run, AdaptiveSemaphore(8), start_number=0, max_retries=retries, relative=rig.relative
    )


async def test_rewards_of_group_reward_are_trained_on(tok: Any, tmp_path: Path) -> None:
    async with rig(tok, tmp_path) as r:
        group = await ran(r)
        assert r.leases.total == 4, "one sandbox for the group"
        assert r.leases.leased == {}
    assert [episode.reward for episode in group.episodes] == [0.0, 0.1, 0.2]
    assert [episode.metrics for episode in group.episodes] == [
        {"alone": 1.0, "rank": float(n)} for n in range(3)
    ]
    assert [episode.score for episode in group.episodes] == [1.0] * 3
    assert group.abandoned is None
    assert GroupRecord.model_validate_json(group.model_dump_json()) == group


async def test_group_reward_sees_only_calls_turns_row_and_reward(tok: Any, tmp_path: Path) -> None:
    seen = "[sum([each.calls[0].content == 'gold', each.turns == 2, each.reward.value == 0.25, "
    seen += "each.answer == 'It is gold.', 'group' in each.row]) / 5 for each in transcripts]"
    async with rig(tok, tmp_path) as r:
        group = await ran(r, seen)
    assert [episode.reward for episode in group.episodes] == [1.0] * 3


async def test_rewards_of_turns_must_match_the_episodes_turns(tok: Any, tmp_path: Path) -> None:
    async with rig(tok, tmp_path) as r:
        group = await ran(r, "[[0.1, 0.2] for _ in transcripts]")
        assert [episode.turn_rewards for episode in group.episodes] == [[0.1, 0.2]] * 3
    async with rig(tok, tmp_path) as r:
        group = await ran(r, "[[0.1, 0.2, 0.3] for _ in transcripts]")
    assert group.abandoned is not None
    assert "3 turn rewards for 2 turns" in group.abandoned.message


async def test_held_out_groups_keep_each_episodes_own_reward(tok: Any, tmp_path: Path) -> None:
    async with rig(tok, tmp_path) as r:
        group = await ran(r, purpose=Purpose.VALIDATION)
        assert r.leases.total == 3
    assert [episode.reward for episode in group.episodes] == [0.25] * 3


async def test_the_preflight_judges_by_the_groups_rewards(tok: Any, tmp_path: Path) -> None:
    async with rig(tok, tmp_path) as r:
        group = await ran(r, purpose=Purpose.PREFLIGHT)
    assert [episode.reward for episode in group.episodes] == [0.0, 0.1, 0.2]
    assert [episode.score for episode in group.episodes] == [1.0] * 3


async def test_the_preflight_loses_episodes_that_no_group_judged(tok: Any, tmp_path: Path) -> None:
    """Otherwise the preflight would judge by rewards of single episodes, which training does not use."""
    async with rig(tok, tmp_path) as r:
        group = await ran(r, "[0.5]", purpose=Purpose.PREFLIGHT)
        one = replace(judge_rig.plan(size=2, group="[0.5]"), purpose=Purpose.PREFLIGHT)
        few = group.model_copy(update={"abandoned": None, "episodes": a_group("p0-0", [1.0, None]).episodes})
        few = await r.relative.judged(one, few, range(1))
    for each in (group, few):
        assert each.unanswered, "it is sampled again at a restart"
        assert {episode.reward for episode in each.episodes} == {None}
    assert {episode.cause for episode in group.episodes} == {"RewardFailed"}
    assert "1 rewards for 3 transcripts" in (group.episodes[0].error or "")


async def test_without_group_reward_no_group_is_judged(tok: Any, tmp_path: Path) -> None:
    async with rig(tok, tmp_path, entrypoint="ranked:Alone") as r:
        group = await ran(r)
        assert r.leases.total == 3
    assert [episode.reward for episode in group.episodes] == [0.25] * 3


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("None", "group_reward returned a NoneType; return a list of rewards"),
        ("0.5", "group_reward returned a float; return a list of rewards"),
        ("[0.5]", "group_reward returned 1 rewards for 3 transcripts; return one for each"),
        ("[0.5, 'good', 0.5]", "group_reward returned the text 'good'"),
        ("[0.5, float('nan'), 0.5]", "reward is nan; return a finite number"),
        ("[0.5, 3.0, 0.5]", "reward is 3.0, outside spec.reward.range [-1, 1]"),
        ("1 / 0", "group_reward raised ZeroDivisionError"),
    ],
)
async def test_a_group_that_cannot_be_judged_gives_no_result(
    tok: Any, tmp_path: Path, reward: str, says: str
) -> None:
    async with rig(tok, tmp_path) as r:
        group = await ran(r, reward, retries=1)
        assert r.leases.total == 5, "retried in a fresh sandbox"
        assert r.leases.leased == {}
    assert group.abandoned is not None
    assert group.abandoned.reason == "NotJudged"
    assert says in group.abandoned.message
    assert [episode.reward for episode in group.episodes] == [0.25] * 3, "no zero was made up"
    assert {name for name, n in total(fold(events.of_group(group))).items() if n} == {UsageClass.DISCARDED}


ASKS = "[self.judge('style', [user(str(len(transcripts)))], {'type': 'number'})] * len(transcripts)"


async def test_one_question_judges_a_whole_group_and_is_on_the_bill(tok: Any, tmp_path: Path) -> None:
    async with (
        endpoint(says("0.5")) as service,
        judge_rig.judges(tmp_path, judge_rig.spec(service.url)) as judges,
    ):
        async with rig(tok, tmp_path, judges) as r:
            group = await ran(r, ASKS)
        assert [body["messages"][0]["content"] for body in service.bodies] == ["3"]
    assert [episode.reward for episode in group.episodes] == [0.5] * 3
    found = events.of_group(group)
    assert [event.id for event in found if event.usage_class is UsageClass.JUDGE_PROMPT] == [
        "t0-000000/group/judge-0/judgePrompt"
    ]
    assert len({event.id for event in found}) == len(found)
    assert sum(map(events.training_episodes, found)) == 3


async def test_a_judge_that_fails_loses_the_group(tok: Any, tmp_path: Path) -> None:
    async with endpoint(fails(400, "no")) as service:
        async with judge_rig.judges(tmp_path, judge_rig.spec(service.url)) as judges:
            async with rig(tok, tmp_path, judges) as r:
                group = await ran(r, ASKS, retries=3)
            assert [standing.cause.field for standing in r.faults.standing] == [
                "spec.judges[style].endpoint.url"
            ]
        assert len(service.bodies) == 4
    assert group.abandoned is not None
    assert "judge style: 400 no" in group.abandoned.message
    assert all(episode.reward == 0.25 for episode in group.episodes)


async def test_a_judge_that_comes_back_judges_the_group(tok: Any, tmp_path: Path) -> None:
    async with endpoint() as service:
        service.answers = [*[fails(500)] * asking.TRIES, says("ok"), says("0.5")]
        judges = judge_rig.judges(tmp_path, judge_rig.spec(service.url))
        async with judges as asked, rig(tok, tmp_path, asked) as r:
            group = await ran(r, ASKS, retries=1)
    assert group.abandoned is None
    assert [episode.reward for episode in group.episodes] == [0.5] * 3
