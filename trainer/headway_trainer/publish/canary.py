"""Scores a fixed sequence, so that a server can prove that it has the published weights."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from headway_api.exits import JobError
from headway_api.records import Canary
from headway_trainer.policy import Policy

LENGTH: Final = 32
SEED: Final = 20_240_229
TOLERANCE: Final = {torch.float32: 2e-4, torch.bfloat16: 0.2}
"""Largest mean absolute difference, in nats, allowed between two engines of one dtype.

It is above the usual differences between transformers and vLLM. In float32 they differ by less than 2e-5;
`test_learner_with_vllm.py` allows real vLLM 1e-3. In bfloat16, trials showed up to 0.15; no command repeats
those trials. Broken weights, or another model's weights, differ by several nats. In bfloat16 the canary
cannot distinguish the weights of two consecutive steps. Digests of the files, and a separate name for each
version, do that (docs/adr/0007).
"""


def canary(policy: Policy, vocabulary: int, dtype: torch.dtype, device: torch.device) -> Canary:
    """Log-probabilities of the fixed sequence at temperature 1; collective if weights are sharded.

    Raises:
        JobError: `WeightsNotFinite`: a log-probability is not finite, so no server could prove that it has
            these weights.
    """
    tokens = np.random.default_rng(SEED).integers(0, vocabulary, LENGTH)
    tokens_1L = torch.from_numpy(tokens).to(device)[None]
    with torch.no_grad():
        logits_TV = policy.logits(tokens_1L, torch.arange(LENGTH - 1, device=device))
        logprob_TV = logits_TV.log_softmax(1)
    logprob_T = logprob_TV.gather(1, tokens_1L[0, 1:, None]).squeeze(1)
    if not bool(logprob_T.isfinite().all()):
        raise JobError(
            "WeightsNotFinite",
            f"the log-probabilities of a fixed sequence are not all finite in {dtype}; use float32, another "
            "base model, or, after the first step, a lower spec.optimizer.learningRate",
            field="spec.model.dtype",
        )
    return Canary(tokens=tokens.tolist(), logprobs=logprob_T.tolist(), tolerance=TOLERANCE[dtype])
