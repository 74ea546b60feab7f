"""Checks whether a model can learn the task, and from what foothold: the whole method in one file, no
cluster.

    python check_learnable.py --model base-model [--seeds 0 1 2] [--rank 16] [--lr 1e-3] [--steps 40]

It samples episodes with the real environment, renderer and parser. It trains in plain PyTorch with a job's
default objective: PPO clipping, group-normalized advantage, token mean. `--rank 0` trains every weight. It
prints the mean training reward, and greedy and sampled success on held-out cases.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environment as desk
import torch
from base_model import renderer_for
from generate import rows
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, Qwen3ForCausalLM

from headway_sandbox.environment import Call, Environment, ToolError, Transcript

MAX_TURNS = 6
MAX_TOKENS = 32
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass
class Episode:
    """An episode in progress: its tokens so far, and its messages and tool calls."""

    environment: Environment
    messages: list[Any]
    specs: list[dict[str, Any]]
    tools: dict[str, Any]
    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    calls: list[Call] = field(default_factory=list)
    done: bool = False
    reward: float = 0.0
    score: float = 0.0


class Player:
    """Plays episodes with one model, all at the same turn."""

    def __init__(self, tokenizer: Any) -> None:
        self.renderer = renderer_for(tokenizer)
        self.stops = self.renderer.get_stop_token_ids()

    def begin(self, row: dict[str, str]) -> Episode:
        environment = desk.RefundDesk({})
        messages = list(environment.reset(row, 0).messages)
        tools = {offered.name: offered for offered in environment.tools()}
        specs = [offered.spec for offered in tools.values()]
        tokens = self.renderer.render_ids(messages, tools=specs, add_generation_prompt=True)
        return Episode(environment, messages, specs, tools, tokens, [0] * len(tokens), [0.0] * len(tokens))

    @torch.no_grad()
    def generate(
        self, model: Any, prompts: Sequence[list[int]], temperature: float
    ) -> list[list[tuple[int, float]]]:
        """Sample one turn for every prompt: (token, log-probability) pairs, the stop token included."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        attention = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        cache = None
        sampled: list[list[tuple[int, float]]] = [[] for _ in prompts]
        open_rows = set(range(len(prompts)))
        for _ in range(MAX_TOKENS):
            positions = (attention.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = model(
                input_ids=ids, attention_mask=attention, position_ids=positions, past_key_values=cache,
                use_cache=True, logits_to_keep=1,
            )  # fmt: skip
            cache = out.past_key_values
            logprobs = (out.logits[:, -1] / (temperature or 1.0)).log_softmax(-1)
            chosen = (
                torch.multinomial(logprobs.exp(), 1) if temperature else logprobs.argmax(-1, keepdim=True)
            )
            for row in list(open_rows):
                token = int(chosen[row, 0])
                sampled[row].append((token, float(logprobs[row, token])))
                if token in self.stops:
                    open_rows.discard(row)
            if not open_rows:
                break
            ids = chosen
            attention = torch.cat([attention, torch.ones_like(chosen)], dim=-1)
        return sampled

    def play(self, model: Any, cases: Sequence[dict[str, str]], temperature: float) -> list[Episode]:
        """Play one episode for each case, all at the same turn, and compute their rewards and scores."""
        episodes = [self.begin(case) for case in cases]
        for _ in range(MAX_TURNS):
            active = [episode for episode in episodes if not episode.done]
            if not active:
                break
            turns = self.generate(model, [episode.tokens for episode in active], temperature)
            for episode, turn in zip(active, turns, strict=True):
                self.turn(episode, turn)
        for episode in episodes:
            transcript = Transcript(episode.messages, episode.calls, truncated=not episode.done)
            reward = episode.environment.reward(transcript)
            episode.reward = getattr(reward, "value", reward)
            episode.score = episode.environment.score(transcript)
        return episodes

    def turn(self, episode: Episode, pairs: list[tuple[int, float]]) -> None:
        """Append the sampled turn and carry out its tool calls."""
        prompt, sampled = list(episode.tokens), [token for token, _ in pairs]
        episode.tokens += sampled
        episode.mask += [1] * len(sampled)
        episode.logprobs += [logprob for _, logprob in pairs]
        parsed = self.renderer.parse_response(sampled, tools=episode.specs, prompt_ids=prompt)
        called = [call for call in parsed.tool_calls or [] if call.name and isinstance(call.arguments, dict)]
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
        if called:
            message["tool_calls"] = [{"function": {"name": c.name, "arguments": c.arguments}} for c in called]
        episode.messages.append(message)
        if not called:
            episode.done = True
            return
        answers = [self.call(episode, call.name, call.arguments) for call in called]
        episode.messages += answers
        bridged = self.renderer.bridge_to_next_turn(prompt, sampled, answers, tools=episode.specs).token_ids
        given = len(bridged) - len(episode.tokens)
        episode.tokens = bridged
        episode.mask += [0] * given
        episode.logprobs += [0.0] * given

    def call(self, episode: Episode, name: str, arguments: dict[str, Any]) -> dict[str, str]:
        try:
            if name not in episode.tools:
                raise ToolError("no such tool")
            content, failed = episode.tools[name](arguments)[0], False
        except ToolError as error:
            content, failed = f"error: {error}", True
        episode.calls.append(Call(name, arguments, content, failed))
        return {"role": "tool", "name": name, "content": content}


def advantages(groups: Sequence[Sequence[Episode]]) -> list[tuple[Episode, float]]:
    """Each episode with its group-normalized advantage, without groups whose rewards are all equal."""
    pairs = []
    for group in groups:
        rewards = torch.tensor([episode.reward for episode in group], dtype=torch.float64)
        if rewards.max() > rewards.min():
            normalized = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            pairs += list(zip(group, normalized.tolist(), strict=True))
    return pairs


def update(model: Any, optimizer: torch.optim.Optimizer, pairs: Sequence[tuple[Episode, float]]) -> None:
    """Take one PPO step over all action tokens, with the ratio clipped to [0.8, 1.2]."""
    width = max(len(episode.tokens) for episode, _ in pairs)

    def padded(values: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in values], dtype=dtype)

    tokens = padded([episode.tokens for episode, _ in pairs], torch.long)
    mask = padded([episode.mask for episode, _ in pairs], torch.bool)[:, 1:]
    old = padded([episode.logprobs for episode, _ in pairs], torch.float32)[:, 1:][mask]
    advantage = torch.tensor([value for _, value in pairs])[:, None].expand_as(mask)[mask]
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1][mask]
    new = logits.log_softmax(-1).gather(-1, tokens[:, 1:][mask][:, None])[:, 0]
    ratio = (new - old).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def evaluate(player: Player, model: Any, cases: Sequence[dict[str, str]], temperature: float) -> float:
    """Share of cases solved exactly."""
    return sum(episode.score for episode in player.play(model, cases, temperature)) / len(cases)


def adapted(folder: Path, rank: int) -> Any:
    """The base model: with all weights trainable for rank 0, else frozen, with a LoRA adapter of alpha 2 *
    rank."""
    model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS))
    return model


def train(options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Train once with `seed`, and return greedy success before and after."""
    torch.manual_seed(seed)
    player = Player(AutoTokenizer.from_pretrained(options.model))
    model = adapted(options.model, options.rank)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / options.warmup)
    )
    train_cases, held_out = rows("train", seed), rows("test", 0)
    random.Random(seed).shuffle(train_cases)
    before = evaluate(player, model, held_out, 0.0)
    print(
        f"seed {seed} step 0: greedy {before:.3f} sampled {evaluate(player, model, held_out, 1.0):.3f}",
        flush=True,
    )
    started, history = time.monotonic(), []
    for step in range(options.steps):
        chosen = train_cases[step * options.prompts : (step + 1) * options.prompts]
        groups = [player.play(model, [case] * options.group, 1.0) for case in chosen]
        history.append(sum(e.reward for group in groups for e in group) / (len(chosen) * options.group))
        pairs = advantages(groups)
        if pairs:
            update(model, optimizer, pairs)
        schedule.step()
        if (step + 1) % options.every == 0:
            greedy = evaluate(player, model, held_out, 0.0)
            reward = sum(history[-options.every :]) / options.every
            print(f"seed {seed} step {step + 1}: reward {reward:.3f} greedy {greedy:.3f}", flush=True)
    after, sampled = evaluate(player, model, held_out, 0.0), evaluate(player, model, held_out, 1.0)
    seconds = time.monotonic() - started
    print(f"seed {seed} rank {options.rank} lr {options.lr}: greedy {before:.3f} -> {after:.3f}, "
          f"sampled {sampled:.3f}, {seconds:.0f} s", flush=True)  # fmt: skip
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("base-model"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [train(options, seed) for seed in options.seeds]
    print("greedy success:", ", ".join(f"{before:.2f} -> {after:.2f}" for before, after in results))


if __name__ == "__main__":
    main()
