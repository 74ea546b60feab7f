"""Merges turns into rows as tinker-cookbook does. It reads an episode a line and writes its rows as a line.

    PYTHON tests/support/tinker_merge.py     (PYTHON: `hack/python/env.py guest tinker`)

An episode is a list of turns [prompt ids, sampled ids, log-probabilities]; a row is {tokens, mask, logprobs}.
Tinker trains on pairs of an input and its next token; a row here is the sequence behind those pairs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory, Transition


def rows(turns: list[tuple[list[int], list[int], list[float]]]) -> list[dict[str, list[Any]]]:
    transitions = [
        Transition(
            ob=tinker.ModelInput.from_ints(prompt),
            ac=TokensWithLogprobs(tokens=sampled, maybe_logprobs=logprobs),
            reward=0.0,
            episode_done=False,
        )
        for prompt, sampled, logprobs in turns
    ]
    episode = Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())
    return [_row(datum) for datum in trajectory_to_data(episode, traj_advantage=1.0)]


def _row(datum: tinker.Datum) -> dict[str, list[Any]]:
    """Make a row. Its first token is never a target: it is always given."""
    targets, mask, logprobs = (
        datum.loss_fn_inputs[name].to_torch().tolist() for name in ("target_tokens", "mask", "logprobs")
    )
    first = datum.model_input.to_ints()[0]
    return {"tokens": [first, *targets], "mask": [0, *map(int, mask)], "logprobs": [0.0, *logprobs]}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(rows(json.loads(line))), flush=True)
