"""Plays an environment's episodes and judges them: `python -m headway_cli.checking.played`, input on stdin.

First the oracle plays on some training rows. This shows whether its answers earn full reward, and how fast
episodes are. Then a novice plays, which follows the oracle and errs half of the time. The preflight's checks
that need no model examine the novice's episodes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from headway_analysis.preflight.checks.reward_range import JUDGEMENT
from headway_analysis.preflight.checks.throughput import SLOW_SECONDS
from headway_analysis.preflight.choose import is_full
from headway_analysis.preflight.conversation import answer_of, excerpt, results_text
from headway_analysis.preflight.definition import MAX_EXAMPLES, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Facts, Sampled
from headway_analysis.preflight.playing import NoReplyError
from headway_api.recipes import room
from headway_api.records import Outcome
from headway_api.spec.training import RLTrainingJobSpec
from headway_cli.checking import clocked, job, rows
from headway_cli.checking.clocked import Clocked
from headway_cli.checking.episodes import ENVIRONMENT, PlayRequest, to_json
from headway_cli.checking.job import Spec
from headway_cli.checking.rows import TRAIN, Data
from headway_cli.players import expert, novice, random_player
from headway_cli.tiny.task import TinyModelError, oracle_of
from headway_sandbox.testing import MODEL_FREE, Report, Sandboxes, examine
from headway_sandbox.testing.playing import Model, Player, baseline

ORACLE: Final = "oracle"
SPEED: Final = "speed"
EPISODE_SECONDS: Final = 30.0
"""Maximum seconds of an episode in this check, even if the job allows more."""
TRIES: Final = 2
"""Episodes of the novice on each row."""
MAX_FAULTS: Final = 5
"""Maximum errors of the environment that are reported."""
ENTRY: Final = "spec.environment.entrypoint"
CONTRACT: Final = "tools-like-production"
"""Id of the preflight check that needs spec.environment.contract."""
ELSEWHERE: Final = {"isolated": "The preflight of the job tries what a sandbox reaches."}
"""Advice for checks that only the job's preflight can answer completely, by the id of the check."""
ReportFinding = Callable[[Finding], None]


def play(spec: Spec, data: Data, folder: Path, max_rows: int, report_finding: ReportFinding) -> None:
    """Play episodes of an environment, and report each finding as soon as it is known.

    Args:
        spec: the job's spec.
        data: the job's rows.
        folder: folder of the environment's modules.
        max_rows: maximum training rows on which episodes are played.
        report_finding: reports a finding.
    """
    asked = spec.environment
    sandboxes = Sandboxes(
        asked.entrypoint,
        asked.config or {},
        [folder],
        timeout=min(float(spec.rollout.timeout_seconds), EPISODE_SECONDS),
        runs_code=asked.sandbox.runs_code,
    )
    try:
        Player(sandboxes).start()
    except NoReplyError as failure:
        report_finding(_unusable(str(failure)))
        return
    facts = facts_of(spec, data)
    count = min(max_rows, len(facts.rows))
    try:
        oracle, lacks = oracle_of(asked.entrypoint, folder), ""
    except TinyModelError as error:
        oracle, lacks = None, str(error)
    faults: list[str] = []
    timed = Clocked(**vars(sandboxes))
    first = baseline(
        Player(timed),
        random_player if oracle is None else expert(oracle, faults),
        replace(facts, group_size=1),
        count,
    )
    if failed_permanently(first):
        _report_faults(Report(first, (), ()), report_finding)
        return
    report_finding(of_oracle(first, faults) if oracle is not None else _without_oracle(lacks))
    report_finding(of_speed(timed.seconds))
    _judge(sandboxes, random_player if oracle is None else novice(oracle), facts, count, report_finding)


def _judge(
    sandboxes: Sandboxes, model: Model, facts: Facts, count: int, report_finding: ReportFinding
) -> None:
    """Play episodes of `model`, and report the findings of the preflight's checks about them."""
    report = examine(
        sandboxes,
        facts.rows,
        model,
        episodes=count * TRIES,
        checks=MODEL_FREE - (set() if facts.contract is not None else {CONTRACT}),
        facts=replace(facts, group_size=TRIES),
    )
    if not _report_faults(report, report_finding):
        many = len(report.baseline.sampled) + len(report.played)
        report_finding(
            Finding(
                ENVIRONMENT,
                "Pass",
                f"{sandboxes.entrypoint} was imported, and {many} episodes ended.",
            )
        )
    for finding in report.findings:
        report_finding(
            replace(finding, advice=ELSEWHERE.get(finding.check, "")) if not finding.advice else finding
        )


def facts_of(spec: Spec, data: Data) -> Facts:
    """The facts about the job that the preflight's checks need."""
    training = spec if isinstance(spec, RLTrainingJobSpec) else None
    low, high = spec.reward.range
    facts = Facts(
        rows=data.of(TRAIN),
        validation=data.of("validation"),
        test=data.of("test"),
        success_threshold=spec.evaluation.success_threshold,
        reward_range=(low, high),
        max_turns=spec.agent.turn_limit,
        seed=spec.seed,
    )
    if training is None:
        return facts
    return replace(
        facts,
        prompt_column=training.data.train.prompt_column,
        overlap_allowed=training.data.allow_overlap,
        max_tokens=training.rollout.sampling.max_tokens,
        context_length=training.model.context_length or room(training.model.base),
        contract=training.environment.contract,
    )


def failed_permanently(first: Baseline) -> bool:
    """Whether every episode ended with an error that was not a wrong reward or score."""
    return all(one.record.error is not None and one.record.cause not in JUDGEMENT for one in first.sampled)


def _unusable(why: str) -> Finding:
    advice = "Put the module into the folder of the job, or name its folder: --environment FOLDER."
    return Finding(ENVIRONMENT, "Fail", job.sentence(why), advice=advice, field=ENTRY)


def _report_faults(report: Report, report_finding: ReportFinding) -> bool:
    """Report the errors that the environment raised or returned. Return whether there were any."""
    broken = report.broken
    for text in broken[:MAX_FAULTS]:
        advice = "Correct the named line. A tool that refuses a call raises ToolError."
        report_finding(Finding(ENVIRONMENT, "Fail", job.sentence(text), advice=advice, field=ENTRY))
    return bool(broken)


def _without_oracle(why: str) -> Finding:
    lacks, none, _ = why.partition(" has no oracle")
    reason = f"The module {lacks} has no oracle" if none else why
    observed = f"{reason}: only random calls were played, so right answers were hardly tested."
    advice = "Write a function `oracle` in that module: docs/first-environment.md#the-oracle."
    return Finding(ORACLE, "Unknown", job.sentence(observed), advice=advice, field=ENTRY)


def of_oracle(first: Baseline, faults: Sequence[str]) -> Finding:
    """A finding that says whether the oracle is right on every row, within the job's limits.

    Args:
        first: the oracle's episodes.
        faults: errors in the oracle itself.
    """
    facts, many = first.facts, len(first.sampled)
    right = [one for one in first.sampled if is_full(one, facts)]
    wrong = [one for one in first.scored if not is_full(one, facts)]
    cut = [one for one in wrong if one.record.outcome is Outcome.TRUNCATED]
    shown = tuple(_example(one) for one in wrong[:MAX_EXAMPLES])
    if faults:
        advice = "Correct it: it yields Calls, receives their results, and returns the text of the answer."
        return Finding(ORACLE, "Fail", job.sentence(faults[0]), advice=advice, field=ENTRY)
    if cut:
        return _cut(cut, facts, many, shown)
    if wrong:
        observed = f"The oracle is right on {len(right)} of {many} rows."
        advice = "Correct the oracle, or reward and score: a right answer must earn the most."
        return Finding(ORACLE, "Fail", observed, advice=advice, field=ENTRY, examples=shown)
    if not right:
        return Finding(ORACLE, "Unknown", "No episode of the oracle was judged.")
    rewards = [one.record.reward or 0.0 for one in right]
    least = f"at least {min(rewards):g} on each"
    observed = f"The oracle is right on {len(right)} of {many} rows, and earns {least}."
    return Finding(ORACLE, "Pass", observed)


def _cut(cut: Sequence[Sampled], facts: Facts, many: int, shown: tuple[Example, ...]) -> Finding:
    """A finding about episodes of the oracle that reached a limit of the job.

    Turns are counted exactly, so too many turns are a failure. Tokens are estimated from characters, so too
    many tokens are only a warning.
    """
    turns = [one for one in cut if facts.max_turns is not None and len(one.results) >= facts.max_turns]
    if turns:
        observed = f"The oracle needs more than {facts.max_turns} turns on {len(turns)} of {many} rows."
        field = "spec.agent.builtin.maxTurns"
        return Finding(ORACLE, "Fail", observed, advice=f"Raise {field}.", field=field, examples=shown)
    observed = (
        f"The oracle is cut off on {len(cut)} of {many} rows, counting four characters as a token: a turn "
        f"has {facts.max_tokens} tokens, an episode {facts.context_length}."
    )
    advice = (
        "Raise spec.rollout.sampling.maxTokens or spec.model.contextLength, or shorten prompt and answers."
    )
    return Finding(
        ORACLE, "Warn", observed, advice=advice, field="spec.rollout.sampling.maxTokens", examples=shown
    )


def _example(one: Sampled) -> Example:
    record = one.record
    parts = (
        f"reward {record.reward:g}, score {record.score:g}",
        results_text(one.results),
        answer_of(one) or "",
    )
    return Example(f"row {one.group.row}", excerpt("\n".join(filter(None, parts))))


def of_speed(seconds: Mapping[str, Sequence[float]]) -> Finding:
    """A finding with the median time of each part of an episode.

    Args:
        seconds: durations of each part, as in `Clocked.seconds`.
    """
    found = {what: median(each) for what, each in seconds.items()}
    parts = ", ".join(f"{what} {_shown(took)}" for what, took in _in_order(found))
    observed = f"In the median: {parts}."
    numbers = tuple((f"{what} seconds", took) for what, took in _in_order(found))
    slow = [what for what, took in found.items() if took > SLOW_SECONDS]
    if slow:
        advice = f"Speed up what takes more than {SLOW_SECONDS:g} s: {', '.join(slow)}."
        return Finding(SPEED, "Warn", observed, advice=advice, field=ENTRY, numbers=numbers)
    return Finding(SPEED, "Pass", observed, numbers=numbers)


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _in_order(found: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The parts and their seconds, in the order in which an episode has them."""
    first, last = (clocked.START, clocked.RESET), (clocked.JUDGEMENT,)
    tools = sorted(what for what in found if what not in (*first, *last))
    return ((what, found[what]) for what in (*first, *tools, *last) if what in found)


def main() -> None:
    """Read a `PlayRequest` as JSON from stdin, and write each finding as a line of JSON to stdout."""
    asked = PlayRequest(**json.load(sys.stdin))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the author's code goes to stderr
    sys.path.insert(0, asked.folder)
    _, spec = job.read(asked.document)
    assert spec is not None
    _, data = rows.read(spec)

    def report_finding(finding: Finding) -> None:
        answers.write(json.dumps(to_json(finding)) + "\n")
        answers.flush()

    play(spec, data, Path(asked.folder), asked.rows, report_finding)


if __name__ == "__main__":
    main()
