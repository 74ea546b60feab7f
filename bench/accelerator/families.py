"""Shows the layout of each model family on the accelerator, and compares packed with padded gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from random_models import made, rows_of
from torch import Tensor

from bench.accelerator import apart, hardware
from bench.support.report import Goal, Row, Section, Table, prose
from headway_trainer.layout import choose
from headway_trainer.policy import Policy, micro_batch

ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest allowed relative difference between the gradients of packed rows and of padded rows.

The padded rows use the model's own attention. In bfloat16 each of the two gradients differs by some
hundredths from the gradient in float32.
"""
COMMON: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", {}),
    "Qwen3": ("Qwen3", {"head_dim": 32}),
    "Qwen3, sliding windows": (
        "Qwen3",
        {
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "Qwen3 MoE": ("Qwen3Moe", {"head_dim": 32, **EXPERTS}),
    "Mistral, sliding windows": ("Mistral", {"sliding_window": 6}),
    "Mixtral": ("Mixtral", {"num_local_experts": 4}),
    "Granite": ("Granite", {"logits_scaling": 3.0}),
    "OLMo 2": ("Olmo2", {}),
    "Gemma 2, attention not capped": (
        "Gemma2",
        {"head_dim": 32, "attn_logit_softcapping": None, "sliding_window": 4},
    ),
    "Gemma 2": ("Gemma2", {"head_dim": 32}),
    "gpt-oss": (
        "GptOss",
        {"head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8},
    ),
}
READ = prose("""
    Two layers of each family, with random weights, are loaded as the learner loads them. The table shows what
    the proof decides that runs when a model is loaded. It also shows how far the gradient of packed rows is
    from that of padded rows, with the model's own attention. A family whose attention asks for more than
    packed rows have is padded, with the reason.
""")


def measure(folder: Path) -> Section:
    """Measure all families in both number formats."""
    rows = [_row(name, dtype) for dtype in ALLOWED for name in FAMILIES]
    packed = [row for row in rows if row["rows"] == "packed"]
    worst = max(row["gradient"] / row["allowed"] for row in packed)
    return Section(
        title="Families of models",
        read=READ,
        tables=[
            Table("What was decided", [{k: v for k, v in row.items() if k != "allowed"} for row in rows])
        ],
        goals=[
            Goal(
                "packed rows have the gradient of padded ones",
                f"{worst:.2f} of what is allowed, at worst, in {len(packed)} of {len(rows)} that are packed",
                worst <= 1,
            )
        ],
    )


def _row(name: str, dtype: torch.dtype) -> Row:
    kind, settings = FAMILIES[name]
    device = torch.device(hardware.kind())
    model = made(kind, **COMMON | settings).to(device, dtype)
    policy = Policy(model, model, temperature=1.0)
    expected = _gradient(policy, lambda: micro_batch(rows_of(), device))
    choice = choose(policy, device, quadratic=0.0)
    found = _gradient(policy, lambda: micro_batch(rows_of(), device, packed=choice.layout.packed))
    return {
        "family": name,
        "dtype": str(dtype).removeprefix("torch."),
        "rows": "packed" if choice.layout.packed else "padded",
        "attention": choice.attention,
        "head": choice.head,
        "gradient": float(f"{apart.relative(found, expected):.2g}"),
        "allowed": ALLOWED[dtype],
        "why": choice.why,
    }


def _gradient(policy: Policy, batch: Callable[[], Any]) -> Tensor:
    """The gradient of a weighted sum of log-probabilities, as one vector."""
    model: Any = policy.model
    model.zero_grad()
    given = batch()
    (policy(given).logprob_T * given.advantage_T).sum().backward()
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
