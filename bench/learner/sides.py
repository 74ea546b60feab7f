"""Runs the sides of `throughput` in one process, in the environment that also has TRL.

python -m bench.learner.sides FOUND.json
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bench.learner.work import MICRO_BATCH_TOKENS, RATE, Ours, model_of, ragged, row
from bench.support.model import SMALL
from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.learner import OptimizerSpec
from headway_trainer import attention
from headway_trainer.batch import LearnerRow
from headway_trainer.layout import Choice
from headway_trainer.packing import plan
from headway_trainer.policy import micro_batch

SIZE = SMALL
VOCABULARY = 8192
EPISODES = 16
BATCH = 8
"""Number of rows in a device batch, which is TRL's default."""
REPEATS = 5


class Trl:
    """`GRPOTrainer._compute_loss` on a trainer with only the attributes that it reads."""

    def __init__(self, model: Any, rows: Sequence[LearnerRow], device: str = "cpu") -> None:
        """Changes `model`, which is on `device`. The caller must no longer use it."""
        from trl import GRPOConfig, GRPOTrainer
        from trl.trainer.utils import add_fused_lm_head

        clip = AlgorithmSpec().effective_clip
        assert clip is not None
        self._device = device
        self._compute: Any = inspect.unwrap(GRPOTrainer._compute_loss)
        self._model = model.train()
        add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._adam = torch.optim.AdamW(self._trained, lr=RATE, weight_decay=0.0)
        self._parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        whole = SimpleNamespace(
            num_processes=1,
            gather=lambda x: x,
            gather_for_metrics=lambda x: x,
            reduce=lambda x, reduction: x,
            autocast=contextlib.nullcontext,
            sync_gradients=True,
        )
        self._trainer = SimpleNamespace(
            model=model,
            accelerator=whole,
            args=GRPOConfig(output_dir="/tmp/unused", use_cpu=True, bf16=False, report_to=[]),
            loss_type="dapo",
            importance_sampling_level="token",
            beta=0.0,
            epsilon_low=1 - clip.low,
            epsilon_high=clip.high - 1,
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            use_vllm=False,
            aux_loss_enabled=False,
            _entropy_bonus_enabled=False,
            current_gradient_accumulation_steps=len(self._parts),
            _metrics=defaultdict(lambda: defaultdict(list)),
        )
        self._trainer.args.steps_per_generation = len(self._parts)
        # Unwrap the function from its timer, which needs a whole trainer.
        measured: Any = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
        self._trainer._get_per_token_logps_and_entropies = partial(measured, self._trainer)
        self._tokens = torch.tensor(float(sum(each.action_tokens for each in rows)))

    def step(self) -> float:
        """Take one optimizer step, and return the loss."""
        loss_sum = 0.0
        for part in self._parts:
            inputs = {name: tensor.to(self._device) for name, tensor in self._inputs(part).items()}
            loss = self._compute(self._trainer, self._model, inputs)
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(self._trained, OptimizerSpec().gradient_clip)
        self._adam.step()
        self._adam.zero_grad()
        return loss_sum

    def _inputs(self, rows: Sequence[LearnerRow]) -> dict[str, Tensor]:
        """A batch in TRL's layout. The prompt is all tokens before the first sampled token."""
        starts = [int(each.mask.argmax()) for each in rows]
        pairs = list(zip(rows, starts, strict=True))

        def right(values: list[Any]) -> Tensor:
            return pad_sequence([torch.from_numpy(value) for value in values], batch_first=True)

        def left(values: list[Any]) -> Tensor:
            return right([value[::-1].copy() for value in values]).flip(1)

        prompts, completions = [r.tokens[:s] for r, s in pairs], [r.tokens[s:] for r, s in pairs]
        return {
            "prompt_ids": left(prompts),
            "prompt_mask": left([value * 0 + 1 for value in prompts]),
            "completion_ids": right(completions),
            "completion_mask": right([value * 0 + 1 for value in completions]),
            "tool_mask": right([r.mask[s:].astype("int64") for r, s in pairs]),
            "old_per_token_logps": right([r.logprobs[s:] for r, s in pairs]),
            "advantages": torch.tensor([float(r.advantages[0]) for r in rows]),
            "num_items_in_batch": self._tokens,
        }


class Bare:
    """Runs forward and backward with the model's own loss, `batch` rows at a time."""

    def __init__(self, model: Any, rows: Sequence[LearnerRow], batch: int) -> None:
        """Changes `model`, which the caller must no longer use."""
        self._model = model.train()
        self._parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]

    def step(self) -> None:
        """Compute gradients and discard them."""
        for rows in self._parts:
            tokens = [torch.from_numpy(each.tokens) for each in rows]
            labels = [
                torch.where(torch.from_numpy(r.mask), t, -100) for r, t in zip(rows, tokens, strict=True)
            ]
            ids = pad_sequence(tokens, batch_first=True)
            mask = pad_sequence([torch.ones_like(each) for each in tokens], batch_first=True)
            targets = pad_sequence(labels, batch_first=True, padding_value=-100)
            self._model(input_ids=ids, attention_mask=mask, labels=targets).loss.backward()
        self._model.zero_grad()


class Lean:
    """Runs forward and backward, one row at a time, with the head only for trained tokens."""

    def __init__(self, model: Any, rows: Sequence[LearnerRow]) -> None:
        """Changes `model`, which the caller must no longer use."""
        self._model = model.train()
        self._rows = rows
        self._tokens = sum(each.action_tokens for each in rows)

    def step(self) -> float:
        """Compute gradients and discard them. Return the mean loss over tokens."""
        total = 0.0
        for each in self._rows:
            tokens = torch.from_numpy(each.tokens)
            trained = torch.from_numpy(each.mask).nonzero().flatten()
            logits = self._model(input_ids=tokens[None], logits_to_keep=trained - 1).logits[0]
            total += _backward(logits, tokens[trained], self._tokens)
        self._model.zero_grad()
        return total


class Packed:
    """Runs forward and backward on the learner's micro-batches, with the learner's attention.

    It runs the head only for trained tokens. Every step must do at least this work.
    """

    def __init__(self, model: Any, rows: Sequence[LearnerRow], choice: Choice) -> None:
        """Changes `model`, which the caller must no longer use. `choice` is the learner's choice for such a
        model."""
        assert choice.layout.packed, f"the learner does not pack: {choice.why}"
        attention.install(model, choice.attention)
        self._model = model.train()
        [mine] = plan([each.length for each in rows], MICRO_BATCH_TOKENS, 1, choice.layout)
        cpu = torch.device("cpu")
        self._parts = [micro_batch([rows[n] for n in chosen], cpu, packed=True) for chosen in mine]
        self._tokens = sum(each.action_tokens for each in rows)

    def step(self) -> float:
        """Compute gradients and discard them. Return the mean loss over tokens."""
        total = 0.0
        for part in self._parts:
            assert part.spans is not None
            logits = self._model(
                input_ids=part.tokens_BL,
                position_ids=part.spans.positions_1L,
                rows=part.spans,
                logits_to_keep=part.positions_T,
            ).logits[0]
            total += _backward(logits, part.targets_T, self._tokens)
        self._model.zero_grad()
        return total


def _backward(logits_TV: Tensor, targets_T: Tensor, tokens: int) -> float:
    loss = torch.nn.functional.cross_entropy(logits_TV, targets_T, reduction="sum") / tokens
    loss.backward()
    return loss.item()


def main() -> None:
    """Measure all sides. They take turns, after one uncounted step each."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    rows = [row(turns, VOCABULARY, seed=n, episode=n) for n, turns in enumerate(ragged(EPISODES, seed=1))]
    ours = Ours(model_of(SIZE, VOCABULARY))
    trl = Trl(model_of(SIZE, VOCABULARY), rows)
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours.step(rows).tokens["loss"],
        "trl": trl.step,
        "bare": Bare(model_of(SIZE, VOCABULARY), rows, BATCH).step,
        "one by one": Bare(model_of(SIZE, VOCABULARY), rows, 1).step,
        "lean": Lean(model_of(SIZE, VOCABULARY), rows).step,
        "packed": Packed(model_of(SIZE, VOCABULARY), rows, ours.layout).step,
    }
    losses = {name: step() for name, step in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, step in sides.items():
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    found = {
        "seconds": seconds,
        "losses": {name: losses[name] for name in ("ours", "trl", "lean", "packed")},
        "tokens": sum(each.length for each in rows),
        "action_tokens": sum(each.action_tokens for each in rows),
    }
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
