"""Every Python program that a page shows runs, and does what the page says.

This module supplies what a page leaves to its reader.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stub_cluster
import written_run
import yaml
from doc_blocks import ROOT, Block, Table, of
from episodes import a_group
from refusal_cases import SMALLEST
from stub_cluster import NAMESPACE, StubCluster
from tiny_model import write_model

from headway_api.names import TRAINING_KIND
from headway_coordinator.judges.schema import mismatch, require
from headway_sandbox import environment, testing
from headway_sandbox.environment import Environment, Transcript
from headway_sandbox.testing import Call, episode

BLOCKS = of("python")
Namespace = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A block, and what it needs to run."""

    text: str
    folder: Path
    """The working folder, empty at first."""
    patch: pytest.MonkeyPatch

    def run(self, **given: Any) -> Namespace:
        """Run the block with the names that the page leaves out, and return what it defines."""
        namespace: Namespace = {"__name__": "block", **given}
        exec(compile(self.text, "block", "exec"), namespace)
        return namespace


def answered(answer: str, **row: Any) -> Transcript:
    """The transcript of an episode that ended with this answer."""
    return Transcript([{"role": "assistant", "content": answer}], [], False, row=row)


# an environment, and its tests


LEFT = """
import hashlib

def lookup(id):
    return hashlib.sha256(id.encode()).hexdigest()[:8]

def answer_to(found):
    return f"<decision>{found}</decision>"

def right_answer(row):
    return answer_to(lookup(row["case_id"]))

def exact_match(transcript):
    return transcript.answer == right_answer(transcript.row)

def field_accuracy(transcript):
    return float(exact_match(transcript))
"""
"""What the page about the desk leaves to its reader: a case is looked up, and the answer is its code."""
TRIED = """
from headway_sandbox.testing import Call

def agent(seen):
    found = yield Call("get_case", {"id": seen.row["case_id"]})
    return answer_to("none" if seen.random.random() < 0.5 else found.content)

rows = [{"case_id": f"case {n}"} for n in range(24)]
"""
"""What pages with tests additionally leave to their reader."""


def write_desk(stage: Stage) -> None:
    """The environment of docs/environments.md, as a module."""
    [block] = [each for each in BLOCKS if "def get_case(self" in each.text]
    (stage.folder / "environment.py").write_text(LEFT + block.text)


def plays(stage: Stage) -> None:
    """Reward and score are 1 for the right answer alone."""
    write_desk(stage)
    row, calls = {"case_id": "case 1"}, [Call("get_case", {"id": "case 1"})]
    for answer, worth in (("<decision>c60f415d</decision>", 1.0), ("no", 0.0)):
        played = episode("environment:Desk", row, calls, answer, folders=[stage.folder])
        assert (played.error, played.reward, played.score) == (None, worth, worth)


def passes(stage: Stage) -> None:
    """The page's tests pass on its environment. Only few episodes are played."""
    write_desk(stage)
    few = functools.partial(testing.check_environment, episodes=8)
    stage.patch.setattr(testing, "check_environment", few)
    stage = replace(stage, text=LEFT + TRIED + stage.text.replace("ROWS = [...]", "ROWS = rows"))
    tests = [test for name, test in stage.run().items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def runs_code(stage: Stage) -> None:
    """The tool prints what the program prints, and the reward is that of the hidden test."""
    more = """
class Tried(Shell):
    tests = "import sys; sys.exit(0)"
    def reset(self, row, seed): return Observation([user("Add.")])
    def score(self, transcript): return 0.0
"""
    names = "Environment, Observation, tool, user"
    head = f"from headway_sandbox.environment import {names}\n"
    (stage.folder / "shell.py").write_text(head + stage.text + more)
    call = Call("python", {"code": "print(6 * 7)"})
    played = episode("shell:Tried", {}, [call], "42", folders=[stage.folder], runs_code=True)
    assert (played.error, played.reward) == (None, 1.0)
    assert [each.content for each in played.results] == ["exit status 0\n42\n"]


# rewards


def by_field(stage: Stage) -> None:
    """The accuracy is the share of right fields, also if a class returns it as its reward."""
    made = stage.run(Environment=Environment, FIELDS=("tier", "amount"), parsed=json.loads)
    reward = asyncio.run(made["Desk"].reward(answered('{"tier": "gold"}', tier="gold", amount=3)))
    assert reward == (0.5, {"tier": 1.0, "amount": 0.0})


def judged(answer: Any) -> Callable[..., Any]:
    """A judge that always gives one answer, and checks its arguments as a coordinator does."""

    def judge(name: str, messages: Sequence[Any], schema: Any) -> Any:
        require(schema)
        assert mismatch(answer, schema) == ""
        assert all({"role", "content"} <= each.keys() for each in messages)
        return answer

    return judge


def compares(stage: Stage) -> None:
    """The answer that the judge ranks first earns most."""
    order = {"type": "array", "items": {"type": "integer"}}
    made = stage.run(Environment=Environment, user=environment.user, ORDER=order)
    desk_ = type("Tried", (made["Desk"],), {"judge": staticmethod(judged([1, 0])), "__abstractmethods__": ()})
    assert made["Desk"].group_reward(desk_, [answered("bad"), answered("good")]) == [0.5, 1.0]


def grades(stage: Stage) -> None:
    """The grade is divided by ten, and a coordinator accepts the schema."""
    made = stage.run(Environment=Environment, user=environment.user, system=environment.system)
    desk_ = type("Tried", (), {"judge": staticmethod(judged({"grade": 7}))})
    assert made["Desk"].reward(desk_, answered("Dear customer")) == 0.7


def registers(stage: Stage) -> None:
    """The learner's tables have both functions, and the advantage computes what its name says."""
    from headway_trainer.objective.advantage import ADVANTAGES, AdvantageSettings, Scored
    from headway_trainer.objective.surrogate import SURROGATES

    for table in (ADVANTAGES, SURROGATES):  # other tests try every entry
        ours = {name: table[name] for name in table if name not in ("against_median", "sapo")}
        stage.patch.setattr(table, "_entries", ours)
    stage.run()
    group = [Scored(reward, (1,)) for reward in (0.0, 0.25, 5.0)]
    [found] = ADVANTAGES["against_median"]([group], AdvantageSettings())
    assert np.concatenate(found).tolist() == [-0.25, 0.0, 4.75]
    assert "sapo" in SURROGATES


# what a job has written


def reads(stage: Stage) -> None:
    """The block prints the messages of a stored group."""
    stored = stage.folder / "trajectories" / "train" / "t0-000007.json.gz"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(gzip.compress(a_group("t0-000007", [1.0]).model_dump_json(by_alias=True).encode()))
    stage.run(print=lambda *words: None)


def trains(stage: Stage) -> None:
    """The block applies the job with its change, waits for it, and reads its metrics and episodes."""
    made = written_run.write(stage.folder / "artifacts", steps=2, every=2)
    job = {**SMALLEST, "metadata": {"name": "refunds", "namespace": NAMESPACE}}
    (stage.folder / "job.yaml").write_text(yaml.safe_dump(job))
    ended = {"type": "Complete", "status": "True", "reason": "R", "message": ""}
    status = {
        "conditions": [ended | {"lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "artifacts": {"uri": made.layout.root},
    }
    metadata = {**job["metadata"], "uid": made.layout.uid, "generation": 1}
    stored = {"kind": TRAINING_KIND, "metadata": metadata, "spec": {}, "status": status}
    cluster = StubCluster(jobs={("rltrainingjobs", "refunds"): stored})
    shown: list[str] = []
    stage.patch.setenv("MPLBACKEND", "agg")
    with stub_cluster.served(cluster, stage.folder) as kubeconfig:
        stage.patch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        stage.run(print=lambda each: shown.append(str(each)))
    [applied] = cluster.applied
    assert applied["spec"]["schedule"] == {"maxSteps": 50}
    assert shown
    assert all("external score" in each for each in shown)


def merges(stage: Stage) -> None:
    """The adapter is merged into its model. A tiny model stands for the page's."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = write_model(stage.folder / "base")
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(target_modules="all-linear", init_lora_weights=False),
    )
    adapted.save_pretrained("adapter")
    replace(stage, text=stage.text.replace('"Qwen/Qwen3-8B"', repr(str(base)))).run()
    ids = torch.tensor([[5, 6, 7]])
    merged = AutoModelForCausalLM.from_pretrained("merged")
    torch.testing.assert_close(merged(ids).logits, adapted.eval()(ids).logits, atol=1e-4, rtol=1e-3)
    assert (stage.folder / "merged" / "tokenizer.json").exists()


RUN: Table[Callable[[Stage], None]] = Table(
    {
        ("docs/algorithms.md", "against_median"): registers,
        ("docs/environments.md", "def get_case(self"): plays,
        ("docs/environments.md", "import gzip"): reads,
        ("docs/environments.md", "class Shell"): runs_code,
        ("docs/environments.md", "class FieldAccuracy"): by_field,
        ("docs/environments.md", "def group_reward"): compares,
        ("docs/environments.md", "GRADE ="): grades,
        ("docs/environments.md", "ROWS = [...]"): passes,
        ("docs/practice.md", "check_environment"): passes,
        ("docs/python.md", "TrainingClient().train"): trains,
        ("docs/recipes.md", "merge_and_unload"): merges,
    }
)
"""How to run each block, and what to expect of it."""
FIRST = "tests/unit/cli/test_first_environment.py::"
ELSEWHERE: Table[str] = Table(
    {
        ("docs/first-environment.md", "def oracle"): f"{FIRST}test_the_oracle_is_the_templates",
        (
            "docs/first-environment.md",
            "ACTION =",
        ): f"{FIRST}test_the_change_runs_through_rows_oracle_and_judge",
        ("docs/first-environment.md", "self.expected.values()"): "tests/unit/cli/test_check.py::mutant",
    }
)
"""Blocks that another test runs, in the project that the blocks change."""


@pytest.mark.parametrize("block", [block for block in BLOCKS if not ELSEWHERE.get(block)], ids=str)
def test_a_program_of_a_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUN.get(block)
    assert run is not None, f"{block}: add to RUN how to run it, or to ELSEWHERE which test does"
    monkeypatch.chdir(tmp_path)
    run(Stage(block.text, tmp_path, monkeypatch))


def test_each_entry_names_one_program() -> None:
    assert RUN.wrong(BLOCKS) + ELSEWHERE.wrong(BLOCKS) == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if ELSEWHERE.get(block)], ids=str)
def test_a_program_that_runs_elsewhere_has_its_test_there(block: Block) -> None:
    path, _, name = str(ELSEWHERE.get(block)).partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
