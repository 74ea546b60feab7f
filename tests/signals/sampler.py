"""Samples turns of many episodes at once from a small Qwen3 in plain torch, with a cache of keys and values.

The forward pass is written out here because it takes weights by name, as the learner publishes them. Several
versions run side by side, with faults added to them. A test compares the result with transformers' own.

Dimensions of the data: B turns, Q tokens of a piece, L tokens of a conversation. Dimensions of the model: H
heads, K heads of keys, D size of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway_coordinator.engines.vllm import Request

Weights = Mapping[str, Tensor]
EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class Shape:
    """The parts of the model's configuration that the forward pass needs."""

    layers: int
    heads: int
    key_heads: int
    size: int
    """Size of a head."""
    epsilon: float
    theta: float

    @classmethod
    def of(cls, folder: Path) -> Shape:
        """Read the shape from config.json."""
        from transformers import AutoConfig

        config: Any = AutoConfig.from_pretrained(folder)
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            size=config.head_dim,
            epsilon=config.rms_norm_eps,
            theta=config.rope_parameters["rope_theta"],
        )


@dataclass
class Kept:
    """Cached keys and values of B conversations: a pair for each layer, each (B, L, K, D)."""

    layers: list[tuple[Tensor, Tensor]]

    @classmethod
    def empty(cls, shape: Shape, rows: int, length: int) -> Kept:
        """A cache with room for `rows` conversations of `length` tokens."""
        size = (rows, length, shape.key_heads, shape.size)
        return cls([(torch.zeros(size), torch.zeros(size)) for _ in range(shape.layers)])

    def taken(self, rows: Tensor, length: int) -> Kept:
        """A copy of some rows, up to `length` tokens."""
        return Kept([(keys[rows, :length], values[rows, :length]) for keys, values in self.layers])

    def put(self, rows: Tensor, other: Kept) -> None:
        """Write rows back."""
        length = other.layers[0][0].shape[1]
        for (keys, values), (new_keys, new_values) in zip(self.layers, other.layers, strict=True):
            keys[rows, :length], values[rows, :length] = new_keys, new_values


def forward(shape: Shape, weights: Weights, tokens_BQ: Tensor, start_B: Tensor, kept: Kept) -> Tensor:
    """Hidden states of tokens that follow the first `start_B` ones of each conversation, (B, Q, hidden).

    Their keys and values are cached. Tokens after a shorter piece are padding: later tokens overwrite them
    before anything attends to them.
    """
    B, Q = tokens_BQ.shape
    positions_BQ = start_B[:, None] + torch.arange(Q)
    places_L = torch.arange(kept.layers[0][0].shape[1])
    visible_B1QL = (places_L <= positions_BQ[:, :, None])[:, None]
    cos, sin = _rotation(shape, positions_BQ)
    rows_B1 = torch.arange(B)[:, None]
    hidden = F.embedding(tokens_BQ, weights[EMBEDDING])
    for layer, (keys, values) in enumerate(kept.layers):
        of = _of_layer(weights, layer)
        normed = _norm(hidden, of("input_layernorm"), shape.epsilon)
        query = F.linear(normed, of("self_attn.q_proj")).view(B, Q, shape.heads, shape.size)
        key = F.linear(normed, of("self_attn.k_proj")).view(B, Q, shape.key_heads, shape.size)
        value = F.linear(normed, of("self_attn.v_proj")).view(B, Q, shape.key_heads, shape.size)
        query = _rotated(_norm(query, of("self_attn.q_norm"), shape.epsilon), cos, sin)
        keys[rows_B1, positions_BQ] = _rotated(_norm(key, of("self_attn.k_norm"), shape.epsilon), cos, sin)
        values[rows_B1, positions_BQ] = value
        seen = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=visible_B1QL,
            enable_gqa=True,
        )
        hidden = hidden + F.linear(seen.transpose(1, 2).flatten(2), of("self_attn.o_proj"))
        normed = _norm(hidden, of("post_attention_layernorm"), shape.epsilon)
        gated = F.silu(F.linear(normed, of("mlp.gate_proj"))) * F.linear(normed, of("mlp.up_proj"))
        hidden = hidden + F.linear(gated, of("mlp.down_proj"))
    return _norm(hidden, weights["model.norm.weight"], shape.epsilon)


def _of_layer(weights: Weights, layer: int) -> Any:
    return lambda name: weights[f"model.layers.{layer}.{name}.weight"]


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon))


def _rotation(shape: Shape, positions_BQ: Tensor) -> tuple[Tensor, Tensor]:
    exponent = torch.arange(0, shape.size, 2, dtype=torch.float32) / shape.size
    angle = positions_BQ[..., None].float() / shape.theta**exponent
    whole = torch.cat([angle, angle], dim=-1)[:, :, None]
    return whole.cos(), whole.sin()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


@dataclass(frozen=True)
class SampledTurn:
    """One sampled turn of a conversation."""

    tokens: list[int]
    logprobs: list[float]
    """Log-probabilities of the distribution that was sampled from, after temperature and top_p."""
    finish_reason: str
    cached: int
    """Prompt tokens that came from the cache."""


class Sampler:
    """One version's weights, and the conversations it has seen."""

    def __init__(self, shape: Shape, weights: Weights, rows: int, length: int) -> None:
        """Room for `rows` conversations of `length` tokens."""
        self._shape, self._weights = shape, weights
        self._kept = Kept.empty(shape, rows, length)
        self._known: dict[str, tuple[int, list[int]]] = {}
        """Conversation -> its row, and the tokens that are cached there."""

    @torch.no_grad()
    def sample(self, asked: Sequence[tuple[str, Request]]) -> list[SampledTurn]:
        """The next turn of each conversation."""
        if not self._known:  # the prefix that all of them share is computed once
            self._read(asked[:1])
        starts, rest = self._begun(asked)
        logits_BV, rows_B = self._read_all(asked, starts, rest)
        return self._speak(asked, starts, rows_B, logits_BV)

    def _begun(self, asked: Sequence[tuple[str, Request]]) -> tuple[list[int], list[list[int]]]:
        """How many tokens of each prompt are cached, and the remaining tokens: at least the last one."""
        starts, rest = [], []
        for name, request in asked:
            if name not in self._known:
                self._adopt(name, request.prompt)
            _, known = self._known[name]
            start = min(_shared(known, request.prompt), len(request.prompt) - 1)
            starts.append(start)
            rest.append(list(request.prompt[start:]))
        return starts, rest

    def _adopt(self, name: str, prompt: Sequence[int]) -> None:
        """Give a new conversation a row, and copy the prefix that it shares with another one."""
        row = len(self._known)
        known: list[int] = []
        if self._known:
            donor, theirs = max(self._known.values(), key=lambda other: _shared(other[1], prompt))
            known = theirs[: _shared(theirs, prompt)]
            for keys, values in self._kept.layers:
                keys[row, : len(known)], values[row, : len(known)] = (
                    keys[donor, : len(known)].clone(),
                    values[donor, : len(known)].clone(),
                )
        self._known[name] = (row, known)

    def _read(self, asked: Sequence[tuple[str, Request]]) -> None:
        starts, rest = self._begun(asked)
        self._read_all(asked, starts, rest)

    def _read_all(
        self, asked: Sequence[tuple[str, Request]], starts: Sequence[int], rest: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor]:
        """Logits after each prompt, and the rows of the conversations."""
        rows_B = torch.tensor([self._known[name][0] for name, _ in asked])
        width = max(map(len, rest))
        tokens_BQ = torch.tensor([[*piece, *[0] * (width - len(piece))] for piece in rest])
        kept = self._kept.taken(rows_B, max(starts) + width)
        hidden = forward(self._shape, self._weights, tokens_BQ, torch.tensor(starts), kept)
        self._kept.put(rows_B, kept)
        for name, request in asked:
            self._known[name] = (self._known[name][0], list(request.prompt))
        last_B = torch.tensor([len(piece) - 1 for piece in rest])
        return self._logits(hidden[torch.arange(len(rest)), last_B]), rows_B

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self._weights[EMBEDDING])

    def _speak(
        self, asked: Sequence[tuple[str, Request]], cached: Sequence[int], rows_B: Tensor, logits_BV: Tensor
    ) -> list[SampledTurn]:
        requests = [request for _, request in asked]
        first, maximum = requests[0], max(request.max_tokens for request in requests)
        assert all((r.temperature, r.top_p) == (first.temperature, first.top_p) for r in requests)
        drawn_BN = torch.tensor(np.array([np.random.default_rng(r.seed).random(maximum) for r in requests]))
        length_B = torch.tensor([len(request.prompt) for request in requests])
        width = int(length_B.max()) + maximum
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        # The turns that are still sampled. Some of them may have ended.
        here_B, kept = torch.arange(len(requests)), self._kept.taken(rows_B, width)
        for number in range(maximum):
            chosen_B, logprob_B = drawn(logits_BV, drawn_BN[here_B, number], first.temperature, first.top_p)
            going = []
            for place, row in enumerate(here_B.tolist()):
                if ended(requests[row], tokens[row]):
                    continue
                tokens[row].append(int(chosen_B[place]))
                logprobs[row].append(float(logprob_B[place]))
                if not ended(requests[row], tokens[row]):
                    going.append(place)
            if not going:
                break
            if 2 * len(going) <= len(here_B):  # drop finished turns from the batch once half are finished
                self._kept.put(rows_B[here_B], kept)
                here_B, chosen_B = here_B[going], chosen_B[going]
                kept = self._kept.taken(rows_B[here_B], width)
            hidden = forward(self._shape, self._weights, chosen_B[:, None], length_B[here_B] + number, kept)
            logits_BV = self._logits(hidden[:, 0])
        self._kept.put(rows_B[here_B], kept)
        for (name, request), sampled in zip(asked, tokens, strict=True):
            # The last token was sampled but not fed to the model.
            self._known[name] = (self._known[name][0], [*request.prompt, *sampled[:-1]])
        return [
            SampledTurn(
                sampled, probable, "stop" if sampled[-1] in request.stop_token_ids else "length", start
            )
            for sampled, probable, request, start in zip(tokens, logprobs, requests, cached, strict=True)
        ]


def ended(request: Request, sampled: Sequence[int]) -> bool:
    """Whether a turn is over."""
    return bool(sampled) and (sampled[-1] in request.stop_token_ids or len(sampled) == request.max_tokens)


def drawn(logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_p: float) -> tuple[Tensor, Tensor]:
    """A token of each row by inversion of the distribution, and its log-probability as vLLM reports it.

    Temperature 0 takes the likeliest token. With `top_p` only the likeliest tokens up to that share are
    drawn, and their probabilities are renormalized.
    """
    logprob_BV = (logits_BV / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        chosen_B = logprob_BV.argmax(-1)
        return chosen_B, logprob_BV.gather(1, chosen_B[:, None])[:, 0]
    if top_p < 1:
        ordered, order = logprob_BV.sort(descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        dropped = torch.zeros_like(logprob_BV, dtype=torch.bool).scatter(1, order, before >= top_p)
        logprob_BV = logprob_BV.masked_fill(dropped, -torch.inf).log_softmax(-1)
    upto_BV = logprob_BV.double().exp().cumsum(-1)
    chosen_B = torch.searchsorted(upto_BV, uniform_B[:, None] * upto_BV[:, -1:], right=True)[:, 0]
    chosen_B = chosen_B.clamp(max=logprob_BV.shape[1] - 1)
    return chosen_B, logprob_BV.gather(1, chosen_B[:, None])[:, 0]


def _shared(known: Sequence[int], prompt: Sequence[int]) -> int:
    """Length of the prefix that two sequences share."""
    for place, (one, other) in enumerate(zip(known, prompt, strict=False)):
        if one != other:
            return place
    return min(len(known), len(prompt))
