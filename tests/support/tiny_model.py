"""A Qwen3-shaped model of random weights that trains, serves and chats on one core.

    python tests/support/tiny_model.py FOLDER [--untied] [--seed N]

It has two layers, hidden size 128, and head size 32, the smallest that vLLM's CPU attention supports. Its
tokenizer is a byte-level BPE of 512 entries. Its chat template has Qwen's form: ChatML turns, and tool calls
as JSON in `<tool_call>` tags. So all code between the dataset and the gradient runs as with a large model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
VOCABULARY = 512

CORPUS = (
    "You are a helpful assistant. Use the tools, then answer.",
    "# Tools\n\nYou may call one or more functions to assist with the user query.",
    '{"type": "function", "function": {"name": "get_case", "description": "Look a case up.", "parameters": '
    '{"type": "object", "properties": {"case_id": {"type": "string"}}, "required": ["case_id"]}}}',
    '<tool_call>\n{"name": "get_case", "arguments": {"case_id": "brave-otter"}}\n</tool_call>',
    '<final_output>{"approve": true, "amount": 12.5, "reason": "within limit"}</final_output>',
    "system user assistant tool What is the sum of 17 and 25? The answer is 42.",
    "For each function call, return a json object with function name and arguments.",
)

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call these functions; their signatures are in <tools></tools>:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, write its name and arguments as JSON in <tool_call></tool_call>:\\n' }}
    {{- '<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {{- function.arguments if function.arguments is string else (function.arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def write_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE on `CORPUS` and write it. It is the same every time."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(ADDED),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def write_model(folder: Path, *, seed: int = 0, tied: bool = True, scale: float = 0.05) -> Path:
    """Write config, weights (model.safetensors, float32) and tokenizer; returns `folder`.

    `scale` is the standard deviation of the weights. Its default makes two seeds differ by
    whole nats, so a test can tell a server with wrong weights from the right one.
    """
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        initializer_range=scale,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    # Norms start at 1 everywhere. Perturb them, so that a test sees a reload that misses them.
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def write_stretched_model(folder: Path, *, original: int = 64, longest: int = 256) -> Path:
    """Write a model of Phi-3's shape; longrope stretches its context from `original` to `longest` tokens."""
    import torch
    from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    factors = {"short_factor": [1.0 + n / 40 for n in range(16)], "long_factor": [1.5 + n for n in range(16)]}
    config = Phi3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=longest,
        original_max_position_embeddings=original,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    torch.manual_seed(0)
    model = Phi3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.1)
    model.save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = write_model(options.folder, seed=options.seed, tied=not options.untied)
    print(
        json.dumps({"model": f"file://{folder.resolve()}", "files": sorted(p.name for p in folder.iterdir())})
    )


if __name__ == "__main__":
    main()
