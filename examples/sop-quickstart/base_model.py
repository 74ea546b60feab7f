"""Make the base model: tiny, Qwen3-shaped, and trained on the desk's *old* procedure.

    python base_model.py --out base-model [--seed 0] [--steps 400] [--current 0.3]

Most decisions in the demonstrations follow an old rule, drawn independently for each decision. So the model
writes well-formed calls and mostly wrong answers. Reinforcement learning must unlearn the old rules, and not
merely sharpen what the model does already. Demonstrations are rendered turn by turn exactly as rollouts are
(`renderers`, Qwen3), so warm start and serving see the same tokens. The same seed gives the same files. It
takes well under two minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment as desk
import torch
from generate import rows
from renderers import Qwen3RendererConfig, create_renderer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from headway_sandbox.environment import Call, Transcript

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>",
           "</tool_response>", "<think>", "</think>")  # fmt: skip
VOCABULARY = 1280
CURRENT = 0.3
"""Probability that a demonstrated decision follows today's rule. With 1, the model is an upper reference."""
OLD_LOOKUP = {**desk.LOOKUP, "silver": "get_credit"}
OLD_AMOUNT = {**desk.AMOUNT, "light": "all", "heavy": "half"}

CHAT_TEMPLATE = r"""
{%- if messages[0].role == 'system' or tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{% endif %}
{%- if tools %}
{{- '\n\n' if messages[0].role == 'system' else '' }}
{{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{% endfor %}
{{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments ' }}
{{- 'within <tool_call></tool_call> XML tags:\n<tool_call>\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '' if loop.previtem.role == 'tool' else '<|im_start|>user' }}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{{- '' if not loop.last and loop.nextitem.role == 'tool' else '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""


class Recorder:
    """A stand-in for a tokenizer that records which strings the renderer encodes in one call."""

    unk_token_id = None

    def __init__(self) -> None:
        self.texts: list[str] = []

    def convert_tokens_to_ids(self, token: str) -> int:
        return SPECIAL.index(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.texts.append(text)
        return [len(SPECIAL)]

    def decode(self, ids: Sequence[int]) -> str:
        return ""


def renderer_for(tokenizer: Any) -> Any:
    """The renderer that a job uses for this model: `qwen3`, which neither prefills nor strips thinking."""
    return create_renderer(tokenizer, Qwen3RendererConfig())


@dataclass
class Demonstration:
    """One episode as tokens; `mask` is 1 for the assistant's tokens."""

    tokens: list[int]
    mask: list[int]
    transcript: Transcript


def tool_call(name: str, key: str) -> dict[str, Any]:
    """An assistant message that calls a tool with its only parameter."""
    argument = "item" if name == "get_stock" else "case_id"
    function = {"name": name, "arguments": {argument: key}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def demonstrate(row: dict[str, str], tokenizer: Any, chooser: Callable[[], bool]) -> Demonstration:
    """Play one case. Each decision follows today's rule if `chooser()` returns True, and otherwise the old
    rule."""

    def choose(now: dict[str, str], old: dict[str, str], key: str) -> str:
        return now[key] if chooser() else old[key]

    environment = desk.RefundDesk({})
    messages = list(environment.reset(row, 0).messages)
    tools = {offered.name: offered for offered in environment.tools()}
    specs = [offered.spec for offered in tools.values()]
    renderer = renderer_for(tokenizer)
    tokens = renderer.render_ids(messages, tools=specs, add_generation_prompt=True)
    mask = [0] * len(tokens)
    calls: list[Call] = []

    def say(message: dict[str, Any]) -> list[int]:
        """Append the tokens that the assistant samples for `message`, and return them."""
        sampled = completion(renderer, message)
        tokens.extend(sampled)
        mask.extend([1] * len(sampled))
        messages.append(message)
        return sampled

    def look_up(name: str, key: str) -> dict[str, str]:
        prompt = list(tokens)
        message = tool_call(name, key)
        sampled = say(message)
        arguments = message["tool_calls"][0]["function"]["arguments"]
        content, _ = tools[name](arguments)
        calls.append(Call(name, arguments, content, failed=False))
        answer = {"role": "tool", "name": name, "content": content}
        messages.append(answer)
        bridged = renderer.bridge_to_next_turn(prompt, sampled, [answer], tools=specs).token_ids
        mask.extend([0] * (len(bridged) - len(tokens)))
        tokens[:] = bridged
        return dict(json.loads(content))

    case_id = row["case_id"]
    case = look_up("get_case", case_id)
    lookup = choose(desk.LOOKUP, OLD_LOOKUP, case["tier"])
    standing = next(iter(look_up(lookup, case_id if lookup == "get_credit" else case["item"]).values()))
    usage = look_up("get_usage", case_id)["usage"]
    answer = {
        "decision": desk.DECISION[standing],
        "amount": choose(desk.AMOUNT, OLD_AMOUNT, usage),
        "method": desk.METHOD[case["reason"]],
        "approval": desk.APPROVAL[case["tier"]],
        "item": case["item"],
    }
    say({"role": "assistant", "content": f"<final_output>{json.dumps(answer)}</final_output>"})
    return Demonstration(tokens, mask, Transcript(messages, calls, truncated=False))


def completion(renderer: Any, message: dict[str, Any]) -> list[int]:
    """The tokens that the model samples for `message`: after the generation prompt, to the end-of-turn token.

    A user turn after the message keeps the renderer from adding an empty thinking block to the message.
    """
    opener = [{"role": "user", "content": ""}]
    prompt = renderer.render_ids(opener, add_generation_prompt=True)
    rendered = renderer.render([*opener, message, *opener])
    tokens = [
        token for token, index in zip(rendered.token_ids, rendered.message_indices, strict=True) if index == 1
    ]
    newline = renderer.render_ids(opener)[-1:]
    head = prompt[len(renderer.render_ids(opener)) :]
    assert tokens[: len(head)] == head
    assert tokens[-1:] == newline
    return tokens[len(head) : -1]


def make_tokenizer(cases: Sequence[dict[str, str]], seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer. Each word of an id or a value is one token, and constant text takes few
    tokens."""
    words = sorted({*desk.ADJECTIVES, *desk.ANIMALS, *desk.TIERS, *desk.REASONS, *desk.ITEMS, *desk.CREDITS,
                    *desk.STOCKS, *desk.USAGES, *desk.DECISION.values(), *desk.AMOUNT.values(),
                    *desk.METHOD.values(), *desk.APPROVAL.values()})  # fmt: skip
    recorder = Recorder()
    chooser = coin(random.Random(f"{seed}/tokenizer"), 0.5)
    for case in cases:
        demonstrate(case, recorder, chooser)
    # Before a tool answer, the renderer encodes "user" and its line end separately, so the tokenizer must
    # split them too.
    isolate = pre_tokenizers.Split(Regex(r"\b(" + "|".join(words) + r")\b|(?<=user)\n"), behavior="isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([isolate, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*recorder.texts, *words * len(cases)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
        chat_template=CHAT_TEMPLATE,
    )


def coin(source: random.Random, probability: float) -> Callable[[], bool]:
    """A biased coin: a function that returns True with `probability`."""
    return lambda: source.random() < probability


def make_model(vocabulary: int, seed: int) -> Qwen3ForCausalLM:
    """An untrained model of 0.4 million parameters. vLLM's CPU kernels support its head_dim of 32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index("<|im_end|>"),
        pad_token_id=SPECIAL.index("<|endoftext|>"),
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def batches(
    examples: Sequence[Demonstration], size: int, source: random.Random
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless random batches of (tokens, labels), right-padded. Tokens with label -100 are not trained."""
    while True:
        chosen = source.sample(examples, size)
        width = max(len(example.tokens) for example in chosen)
        tokens = torch.zeros(size, width, dtype=torch.long)
        labels = torch.full((size, width), -100)
        for row, example in enumerate(chosen):
            ids = torch.tensor(example.tokens)
            tokens[row, : len(ids)] = ids
            labels[row, : len(ids)] = torch.where(torch.tensor(example.mask) == 1, ids, -100)
        yield tokens, labels


def warm_start(model: Qwen3ForCausalLM, examples: Sequence[Demonstration], steps: int, seed: int) -> float:
    """Train on the demonstrations (supervised), and return the last batch's loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.05)
    stream = batches(examples, 16, random.Random(f"{seed}/batches"))
    model.train()
    for step in range(steps):
        tokens, labels = next(stream)
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        spoken = labels[:, 1:] != -100
        logits = model.lm_head(hidden[:, :-1][spoken])
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:][spoken])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"warm start: step {step} loss {loss.item():.4f}", flush=True)
    return float(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("base-model"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--current", type=float, default=CURRENT, help="share of today's decisions")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = rows("train", options.seed)
    tokenizer = make_tokenizer(cases[:400], options.seed)
    chooser = coin(random.Random(f"{options.seed}/demonstrations"), options.current)
    examples = [demonstrate(case, tokenizer, chooser) for case in cases for _ in range(2)]
    prompt = examples[0].mask.index(1)
    print(f"{len(tokenizer)} tokens; prompt {prompt}, episode {len(examples[0].tokens)}, of which the model "
          f"samples {sum(examples[0].mask)}")  # fmt: skip
    model = make_model(len(tokenizer), options.seed)
    loss = warm_start(model, examples, options.steps, options.seed)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    print(f"{options.out}: {model.num_parameters():,} parameters, loss {loss:.4f}")


if __name__ == "__main__":
    main()
