"""The evaluation benchmark sends the requests that it claims, and its numbers are what they are called."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from episodes import sealed

sys.path.insert(0, str(Path(__file__).parents[3]))

from bench.evaluation import clerk, replay
from bench.evaluation.environment import procedure
from bench.evaluation.speed import ORDERS, READ, SIDES, section
from bench.evaluation.stand import PLACES, Ran
from bench.support.machine import ROOT
from bench.support.model import TINY

from headway_api.records import EpisodeRecord, PolicyVersion, Purpose, TrainingRow, Turn
from headway_api.seeds import seed
from headway_coordinator import group as groups
from headway_coordinator.dataset import Order
from headway_coordinator.engines import vllm
from headway_coordinator.episode import Task
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.trajectory.render import Renderer, load
from headway_coordinator.trajectory.template import template_text

RESULTS = ROOT / "bench" / "results"
SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_tokens=64)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": procedure.TOOL,
            "description": procedure.DESCRIPTION,
            "parameters": {
                "type": "object",
                "properties": {procedure.PARAMETER: {"type": "string", "description": procedure.ABOUT}},
                "required": [procedure.PARAMETER],
            },
        },
    }
]


def turn(index: int, prompt: int, sampled: int) -> Turn:
    return Turn(
        index=index,
        prompt_tokens=prompt,
        cached_tokens=0,
        sampled_tokens=sampled,
        finish_reason="stop",
        policy_version=PolicyVersion(incarnation=0, step=0),
    )


def of_two_turns(**changes: object) -> EpisodeRecord:
    """An episode of two turns: prompt 1 2 3, sampled 4 5, a tool's answer 6, sampled 7."""
    row = TrainingRow(tokens=[*range(1, 8)], mask=[0, 0, 0, 1, 1, 0, 1], logprobs=[0.0] * 7, versions=[])
    record = sealed("e-clerk-000002", 0, reward=1.0)
    return record.model_copy(update={"rows": [row], "turns": [turn(0, 3, 2), turn(1, 6, 1)]} | changes)


def test_requests_are_read_from_the_records() -> None:
    first, second = replay.calls(of_two_turns(), sampling_seed=9)
    assert (first.prompt, first.sampled) == ([1, 2, 3], [4, 5])
    assert (second.prompt, second.sampled) == ([1, 2, 3, 4, 5, 6], [7])
    assert [first.seed, second.seed] == [seed(9, 0), seed(9, 1)]


@pytest.mark.parametrize("changes", [{"forks": 1}, {"rows": []}, {"turns": [turn(0, 2, 2)]}])
def test_episodes_that_were_rendered_again_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="e-clerk-000002"):
        replay.calls(of_two_turns(**changes), sampling_seed=9)


async def test_seeds_are_those_of_the_run() -> None:
    drawn: dict[str, int] = {}

    async def episode(task: Task) -> EpisodeRecord:
        drawn[task.episode_id] = task.sampling_seed
        return sealed(task.group_id, task.index, reward=1.0, attempt=task.attempt)

    plan = groups.Plan(
        slot=Order(rows=9, seed=5, shuffle=False).slot(7),
        purpose=Purpose.EVALUATION,
        step=0,
        row={},
        size=2,
        sampling=SAMPLING,
        job_seed=5,
        candidate="clerk",
    )
    group = await groups.run(plan, episode, nullcontext(), start_number=3, max_retries=0)
    assert drawn == {e.episode_id: replay.sampling_seed(group, e, SAMPLING, 5) for e in group.episodes}


def test_a_request_differs_from_the_coordinators_by_its_salt() -> None:
    call = replay.Call(prompt=[1, 2], sampled=[3], seed=11)
    asked = vllm.Request([1, 2], SAMPLING.max_tokens, SAMPLING.temperature, SAMPLING.top_p, 11, [5])
    assert replay.body("base", call, SAMPLING, [5]) == vllm._body("base", replay.SALT, asked)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Renderer, Any, torch.nn.Module]:
    from transformers import AutoModelForCausalLM

    folder = clerk.write_model(tmp_path_factory.mktemp("clerk"), TINY)
    return *load(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("row", procedure.rows(5), ids=lambda row: f"{row['steps']}-steps")
def test_the_model_reads_to_the_last_step_and_answers(
    model: tuple[Renderer, Any, torch.nn.Module], row: dict[str, object]
) -> None:
    renderer, tokenizer, policy = model
    messages = [
        {"role": "system", "content": procedure.SYSTEM},
        {"role": "user", "content": row["prompt"]},
    ]
    prompt = renderer.render(messages, TOOLS)
    for number in range(1, procedure.LONGEST + 2):
        ids = policy.generate(torch.tensor([prompt]), max_new_tokens=clerk.TURN_TOKENS, do_sample=False)  # type: ignore[operator]
        sampled = ids[0, len(prompt) :].tolist()
        reply = renderer.parse(sampled, prompt, TOOLS)
        if not reply.calls:
            break
        [call] = reply.calls
        assert (call.name, call.problem) == (procedure.TOOL, None)
        function = {"name": call.name, "arguments": call.arguments}
        spoken = {"role": "assistant", "content": reply.content}
        messages.append(spoken | {"tool_calls": [{"id": "c", "type": "function", "function": function}]})
        read = procedure.step(str(row["case"]), number, int(str(row["steps"])))
        result = [{"role": "tool", "tool_call_id": "c", "content": read}]
        extended = renderer.extend(prompt, sampled, messages, result, TOOLS)
        messages += result
        written = template_text(tokenizer, messages, TOOLS, generate=True)
        by_text = tokenizer.encode(written, add_special_tokens=False)
        assert extended == by_text, "who sends text has other tokens in its history"
        prompt = extended
    assert number == int(str(row["steps"])) + 1
    assert procedure.solved(reply.content)


RAN = Ran(
    side="",
    seconds=10.0,
    cpu=1.0,
    in_episodes=150.0,
    in_calls=148.0,
    whole=12.0,
    engine_cpu=8.0,
    episodes=40,
    turns=200,
    prompt_tokens=90000,
    sampled_tokens=7000,
    solved=40,
)


def repetitions(headway: float, inspect: float) -> list[dict[str, Ran]]:
    """Repetitions in which the limit takes 10 s, scaled by the machine's speed."""
    found = []
    for order, busy in zip(ORDERS, (1.0, 1.5, 0.9, 1.2, 1.1, 1.0), strict=True):
        seconds = {"headway": headway * busy, "limit": 10.0 * busy, "inspect": inspect * busy}
        found.append({side: replace(RAN, side=side, seconds=seconds[side]) for side in order})
    return found


def test_every_side_runs_equally_often_first_and_last() -> None:
    assert {side: [order[0] for order in ORDERS].count(side) for side in SIDES} == dict.fromkeys(SIDES, 2)
    assert {side: [order[-1] for order in ORDERS].count(side) for side in SIDES} == dict.fromkeys(SIDES, 2)


@pytest.mark.parametrize(
    ("headway", "inspect", "met"), [(10.4, 12, [True, True]), (10.6, 10.5, [False, False])]
)
def test_ratios_are_of_one_repetition(headway: float, inspect: float, met: list[bool]) -> None:
    made = section(repetitions(headway, inspect))
    assert [goal.met for goal in made.goals[:2]] == met
    of_limit, over_inspect = f"{10 / headway:.3f}", f"{inspect / headway:.3f}"
    assert made.goals[0].found.startswith(f"{of_limit} (median of 6, 95 % in {of_limit} .. {of_limit})")
    assert made.goals[1].found.startswith(over_inspect)


def test_a_goal_that_the_median_alone_meets_says_so() -> None:
    found = repetitions(10.0, 12.0)
    assert "the interval includes" not in section(found).goals[0].found
    found[5]["headway"] = replace(found[5]["headway"], seconds=11.5)
    found[4]["headway"] = replace(found[4]["headway"], seconds=12.5)
    goal = section(found).goals[0]
    assert goal.met
    assert goal.what.endswith("by the median")
    assert re.search(r"95 % in 0\.8\d\d .*; met by the median: the interval includes 0\.8\d;", goal.found)


def test_the_recorded_page_is_in_todays_words() -> None:
    recorded = json.loads((RESULTS / "evaluation.json").read_text())["speed"]
    assert recorded["read"] == READ
    assert [goal["what"] for goal in recorded["goals"]] == [
        goal.what for goal in section(repetitions(10.0, 12.0)).goals
    ]
    assert "; met by the median: the interval includes 0.94;" in recorded["goals"][0]["found"]
    assert recorded["goals"][0]["found"] in (RESULTS / "evaluation.md").read_text()


def test_a_turns_overhead_is_given_in_milliseconds_of_a_place() -> None:
    found = repetitions(11.0, 12.0)
    ours, limit, _ = section([found[0]]).tables[0].rows
    assert limit["ms a turn"] == pytest.approx(10_000 * PLACES / 200)
    assert ours["over the limit, ms"] == pytest.approx(1_000 * PLACES / 200)
    assert limit["over the limit, ms"] == 0
    assert ours["outside vLLM, ms a turn"] == pytest.approx(1_000 * 2.0 / 200)


def test_sides_that_sample_other_tokens_fail_and_are_shown() -> None:
    found = repetitions(10.0, 12.0)
    found[2]["inspect"] = replace(found[2]["inspect"], sampled_tokens=7001)
    goal = section(found).goals[2]
    assert not goal.met
    assert "Inspect AI [(40, 200, 7000), (40, 200, 7001)]" in goal.found
