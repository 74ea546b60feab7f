"""Measures action tokens per second of our optimizer step, of TRL's, and of bare forward and backward."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench.learner.sides import BATCH, EPISODES, REPEATS, SIZE, VOCABULARY
from bench.learner.work import MICRO_BATCH_TOKENS
from bench.support import machine
from bench.support.report import Goal, Row, Section, Table, prose
from bench.support.stats import shown
from headway_trainer.policy import CHUNK

OVER_TRL = 1.5
OF_BARE = 0.9
BARE = ("bare", "one by one", "lean", "packed")
SAME = (("ours", "trl"), ("lean", "packed"))
"""Pairs of sides that compute the same loss."""
SAME_LOSS = 1e-4
NAMES = {
    "ours": "ours: an optimizer step",
    "trl": "TRL: GRPOTrainer's loss, backward, clip, AdamW",
    "bare": "bare: forward and backward, padded",
    "one by one": "bare, rows one by one: nothing padded",
    "lean": "bare, rows one by one, the head only where a token is trained",
    "packed": "bare, the learner's packed micro-batches, the head only where a token is trained",
}

PIECE = CHUNK // VOCABULARY
"""Number of tokens in one chunk of the learner's head."""
HEAD = (
    "The head runs in one piece on both sides: one of the learner's holds "
    f"{PIECE} tokens of this vocabulary, and a micro-batch has no more."
    if PIECE >= MICRO_BATCH_TOKENS
    else f"The fourth's head runs in one piece, the learner's in pieces of {PIECE} tokens, each of which the "
    "backward pass computes again."
)

READ = prose(f"""
    One batch has {EPISODES} episodes of 2 to 10 turns of unequal length, one row each. It is trained in
    float32 on all cores. The model has Qwen3's shape, with {SIZE.layers} layers of width {SIZE.hidden} and a
    vocabulary of {VOCABULARY}. Its head is as large, beside the layers, as that of Qwen3-0.6B. The sides take
    turns in one process, {REPEATS} times; a ratio is the median of those of each time.

    *Ours* is everything between rows and new weights: planning, packing, forward, backward, statistics,
    gradient norm, clip, AdamW, by DeepSpeed (ZeRO 2, one rank). *TRL* is `GRPOTrainer._compute_loss` called
    on the same rows with its fused head, then backward, clip and AdamW. TRL lays the rows out: {BATCH} rows a
    device batch, prompts padded on the left, completions on the right, tool results masked. Sampling, rewards
    and logging are left out. TRL's loss and ours agree on the first step to what the table says.

    *Bare* is forward, cross-entropy of the action tokens and backward, in four ways; none has an objective,
    statistics, a clip or an optimizer. The first is what one writes by hand: batches of {BATCH} rows in
    order, padded on the right, with a mask and the model's loss. The second is the same a row at a time, so
    that nothing is padded. The third has the head only at the tokens that are trained. The fourth has that
    too, and runs the micro-batches that the learner plans, of up to {MICRO_BATCH_TOKENS} tokens. They are
    laid out before the clock starts, and use the learner's own attention over packed rows. So the same tokens
    go through the same layers in the same way as ours. The last two have one loss, as every run asserts. The
    goal is judged by the fastest of the four.

    The fourth is not a part of ours, and either may be the faster. Beside what a step adds, two things are
    done in another way. A gradient of the fourth is PyTorch's own. It is added up in place over
    micro-batches, thrown away after the step, and allocated again in the next. Ours goes through DeepSpeed's
    buffers. And the fourth has PyTorch's cross-entropy over the logits, ours a log-probability and an entropy
    of each token. {HEAD}
""")


def measure(folder: Path) -> Section:
    """Measure all sides in one process, in the environment that has TRL."""
    environ = {**os.environ, "PYTHONPATH": f"{machine.ROOT}:{machine.ROOT / 'tests' / 'support'}"}
    command = [str(_oracles()), "-m", "bench.learner.sides", str(folder / "found.json")]
    done = subprocess.run(command, cwd=machine.ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the sides did not run:\n{done.stderr[-4000:]}")
    found = json.loads((folder / "found.json").read_text())
    return section(found["seconds"], found["action_tokens"], found["tokens"], found["losses"])


def section(
    seconds: dict[str, list[float]], action_tokens: int, tokens: int, losses: dict[str, float]
) -> Section:
    """The section of the sides, with its table and goals."""

    def over(name: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[name], seconds["ours"], strict=True))

    rows: list[Row] = [
        {
            "side": NAMES[name],
            "s": shown(statistics.median(taken)),
            "action tokens/s": shown(action_tokens / statistics.median(taken)),
            "ours is faster by": shown(over(name)),
        }
        for name, taken in seconds.items()
    ]
    fastest = min(BARE, key=over)
    for one, other in SAME:
        apart = abs(losses[one] - losses[other])
        assert apart < SAME_LOSS, f"{one} and {other} do not compute the same: their losses are {apart} apart"
    apart = abs(losses["ours"] - losses["trl"])
    return Section(
        title="Throughput",
        read=READ,
        tables=[Table(f"{action_tokens} action tokens in {tokens}; losses {apart:.1e} apart at first", rows)],
        goals=[
            Goal("a step of TRL's at 1.5 times the speed", f"{over('trl'):.2f}", over("trl") >= OVER_TRL),
            Goal(
                "0.9 of bare forward and backward",
                f"{over(fastest):.2f} of the fastest of {len(BARE)} ({fastest})",
                over(fastest) >= OF_BARE,
            ),
        ],
    )


def _oracles() -> Path:
    script = machine.ROOT / "hack" / "python" / "env.py"
    done = subprocess.run(
        [sys.executable, script, "path", "--oracles"], capture_output=True, text=True, check=True
    )
    python = Path(done.stdout.strip()) / "bin" / "python"
    if not python.exists():
        raise RuntimeError("the environment with TRL is not there: `make oracles`")
    return python
