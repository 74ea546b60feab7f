"""What the checks find in the traps and in the clean tasks, as a page.

    python -m tests.traps.page [--write] [--first]

`--write` writes bench/results/traps.md. `--first` writes `first_run.json` once. It has what the checks found
before any check or trap was adapted to the other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scipy.stats import binomtest
from tests.traps.clean import CLEAN
from tests.traps.desk import TRAPS as DESK_TRAPS
from tests.traps.from_the_guide import FROM_THE_GUIDE
from tests.traps.further import FURTHER
from tests.traps.judge import ALARMS, EPISODES, judged
from tests.traps.trap import Trap

from headway_sandbox.testing import Report

PAGE: Final = Path("bench/results/traps.md")
FIRST: Final = Path(__file__).with_name("first_run.json")
SEEDS: Final = range(10)
Found = dict[str, dict[str, str]]
"""Trap or clean task -> check -> verdict, if that is neither Pass nor Unknown. `own` stands for a trap's
check."""

INTRODUCTION: Final = f"""\
# What the preflight's checks find in seeded faults

Made by `make test-traps`. A trap is a small task with exactly one fault, made from a clean one. It has the \
id of the check that is to name it. Each is played over the sandbox's real server, with a fresh process for \
each episode. There are {EPISODES} episodes in groups of 8, then the scripts that the checks ask for. A \
simulated model plays, which knows the procedure in part and copies the format that the prompt shows \
(tests/traps/pupils.py). Only {len(DESK_TRAPS)} further traps are played by a model in a real vLLM: see \
[there](#with-a-real-vllm). A trap counts as found where its check warns or fails.

The traps of *the guide* were written from the practice guide alone, and committed before there was a check. \
Those of *the list* were written from the list of the checks, before the checks were read. The first run is \
what the checks said when both met for the first time; nothing of it is changed afterwards. What was changed \
since is listed below.
"""


VLLM: Final = """\
The {number} traps below are faults of the quickstart's desk, and its tiny model plays them in a real vLLM \
(`tests/traps/test_with_vllm.py`). Each is named there by its check, and the desk without a fault by none. \
`make test-long IN=tests/traps/test_with_vllm.py` runs them. \
All other traps are played by simulated models alone: the tiny model knows one desk, and no other task.

The first run named 11 of the first 12: at `maxTokens: 12` no answer of `desk-answers-cut` was cut off. Its \
limit is 8 now. Of the 18 that were added later the first run named 16. Words around one right answer are no \
fault: `desk-any-of-several` took that trap's place. A tool that repeats itself after four calls shows \
nothing of another episode: `desk-counter-of-all-episodes` took its place.
"""


def of_trap(trap: Trap) -> dict[str, str]:
    """The verdict of a trap's own check."""
    return {"own": judged(trap.task, trap, checks={trap.check}).of(trap.check).verdict}


def alarms_of(report: Report) -> dict[str, str]:
    """Verdicts of the checks that fail or warn."""
    return {each.check: each.verdict for each in report.findings if each.verdict in ALARMS}


def of_traps() -> Found:
    """The verdicts for all traps."""
    found = {}
    for trap in (*FROM_THE_GUIDE, *FURTHER):
        found[trap.name] = of_trap(trap)
        print(trap.name, trap.check, found[trap.name], flush=True)
    return found


def of_clean() -> Found:
    """The alarms for all clean tasks, by seed."""
    found = {}
    for task in CLEAN:
        for seed in SEEDS:
            found[f"{task.name}, seed {seed}"] = alarms_of(judged(task, seed=seed))
            print(task.name, seed, found[f"{task.name}, seed {seed}"], flush=True)
    return found


def hits(traps: Sequence[Trap], found: Mapping[str, Mapping[str, str]]) -> tuple[int, int]:
    """How many traps their own check finds, and how many traps there are."""
    known = [trap for trap in traps if trap.name in found]
    return sum(found[trap.name]["own"] in ALARMS for trap in known), len(known)


def rate(number: int, of: int) -> str:
    """A share, with its 95 % interval (Clopper and Pearson 1934)."""
    if not of:
        return "none"
    interval = binomtest(number, of).proportion_ci(0.95, "exact")
    return f"{number} of {of} ({interval.low:.0%} to {interval.high:.0%})"


def page(now: Found, clean: Found, first: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION, "| | first run | now |\n|---|---|---|"]
    for name, traps in (("the guide", FROM_THE_GUIDE), ("the list", FURTHER)):
        rates = f"{rate(*hits(traps, first['traps']))} | {rate(*hits(traps, now))}"
        parts.append(f"| traps of {name} that are found | {rates} |")
    quiet = [rate(sum(not alarms for alarms in each.values()), len(each)) for each in (first["clean"], clean)]
    parts.append(f"| runs of clean tasks without an alarm | {quiet[0]} | {quiet[1]} |")
    parts += ["\n## Changed since the first run\n", *first["changed"]]
    parts += [
        "\n## Each trap\n",
        "| trap | from | what is wrong | check | first run | now | also named by, first run |",
    ]
    parts.append("|---|---|---|---|---|---|---|")
    for source, traps in (("guide", FROM_THE_GUIDE), ("list", FURTHER)):
        for trap in traps:
            before, found = first["traps"].get(trap.name, {}), now[trap.name]
            also = ", ".join(name for name in before if name not in ("own", trap.check))
            own = f"{before.get('own', 'no such trap')} | {found['own']}"
            parts.append(f"| {trap.name} | {source} | {trap.says} | `{trap.check}` | {own} | {also} |")
    parts += ["\n## With a real vLLM\n", VLLM.format(number=len(DESK_TRAPS))]
    parts.append("| trap | what is wrong | check |\n|---|---|---|")
    parts += [f"| {trap.name} | {trap.says} | `{trap.check}` |" for trap in DESK_TRAPS]
    parts.append("\n## Clean tasks\n")
    loud = {name: alarms for name, alarms in clean.items() if alarms}
    parts += [f"- {name}: {alarms}" for name, alarms in loud.items()]
    if not loud:
        parts.append(f"None of {len(clean)} runs ({len(CLEAN)} tasks, {len(SEEDS)} seeds) raised an alarm.")
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the checks find in traps and clean tasks.")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--first", action="store_true")
    options = parser.parse_args()
    now, clean = of_traps(), of_clean()
    if options.first:
        FIRST.write_text(json.dumps({"changed": [], "traps": now, "clean": clean}, indent=1) + "\n")
    text = page(now, clean, json.loads(FIRST.read_text()))
    if options.write:
        PAGE.write_text(text)
    print(text)
    missed = [trap.name for trap in (*FROM_THE_GUIDE, *FURTHER) if now[trap.name]["own"] not in ALARMS]
    loud = [name for name, alarms in clean.items() if alarms]
    if missed or loud:
        raise SystemExit(
            f"missed: {', '.join(missed) or 'none'}; alarms of clean tasks: {', '.join(loud) or 'none'}"
        )


if __name__ == "__main__":
    main()
