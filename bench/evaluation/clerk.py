"""A model with handwritten weights, which solves a case, so that every side samples the same tokens.

It has Qwen3's shape and computing costs, because every matrix is still multiplied. Each of its words is one
token, and each token has one successor. A turn is a chain of tokens, from the newline after the turn's header
to the end-of-turn token. One attention head looks for the token that ends the tool's last answer. If the
conversation contains this token, the turn begins with the first word of the final answer, and otherwise with
that of a call.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from bench.evaluation.environment import procedure
from bench.support.model import Size, configuration

REASONING = (
    "Before anything goes out, somebody has to read what each paragraph says about such cases, so let me "
    "look up which step comes next here and then decide whether more must be checked:"
)
CALL = (
    "<tool_call>",
    f'\n{{"name": "{procedure.TOOL}"',
    f', "arguments": {{"{procedure.PARAMETER}"',
    ': "this case"}}\n',
    "</tool_call>",
)
TURN_TOKENS = 64
"""Maximum tokens of a turn. Every turn is shorter, so none is truncated."""
CERTAIN = 100.0
"""Logit weight of the successor in a chain, relative to the weight of a call's first word, which is 1."""
SEEN = 6000.0
"""Logit weight of the answer's first word, times the conversation's tokens, once the last step was read.

For 60 to 6,000 tokens, the weight is between 1 and CERTAIN.
"""
# Qwen3's template puts a newline between reasoning and a call. The model does not sample this newline. So the
# history of a client that sends text would have different tokens, and fewer of them would be cached.
TEMPLATE = QWEN3_TEMPLATE.replace("(loop.first and message.content) or not loop.first", "not loop.first")


def words(text: str) -> list[str]:
    """The words of a text, each with the blank before it."""
    return re.findall(r"^\S+|\s\S+", text)


def chains() -> tuple[list[str], list[str]]:
    """The token texts of a turn with a tool call, and of a turn with the final answer.

    Each ends with the end-of-turn token.
    """
    call, answer = [*words(REASONING), *CALL], words(procedure.ANSWER)
    assert len({*call, *answer}) == len(call) + len(answer), "every token of the two turns has one successor"
    return [*call, "<|im_end|>"], [*answer, "<|im_end|>"]


def write_tokenizer(folder: Path) -> Any:
    """Write the toy tokenizer, with each of the model's words as one token."""
    from tokenizers import AddedToken

    found = tokenizer(folder, TEMPLATE)
    call, answer = chains()
    known = found.get_vocab()
    added = [text for text in (*call, *answer, procedure.LAST) if text not in known]
    found.add_tokens([AddedToken(text, special=False, normalized=False) for text in dict.fromkeys(added)])
    found.save_pretrained(folder)
    return found


def write_model(folder: Path, size: Size) -> Path:
    """Write config, weights (float32, untied) and tokenizer. Return `folder`."""
    import torch
    from transformers import Qwen3ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    tok = write_tokenizer(folder)
    ids = [[tok.convert_tokens_to_ids(text) for text in chain] for chain in chains()]
    newline = tok.encode("<|im_start|>assistant\n", add_special_tokens=False)[-1]
    torch.manual_seed(0)
    config = configuration(size, len(tok), eos=tok.eos_token_id, pad=tok.pad_token_id)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        _silence(model)
        _speak(model, ids, newline, tok.convert_tokens_to_ids(procedure.LAST))
    model.save_pretrained(folder)
    return folder


def _silence(model: Any) -> None:
    """Make the outputs of all layers 0, so that each token keeps its own embedding."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def _speak(model: Any, chains: Sequence[Sequence[int]], newline: int, last: int) -> None:
    """Set every token's successor, and the attention head that looks for the token `last`."""
    embeddings, head = model.model.embed_tokens.weight, model.lm_head.weight
    embeddings.zero_()
    head.zero_()
    call, answer = chains
    # Use one dimension for each token with a successor, one for `last`, one that says that `last` was seen,
    # and one for all other tokens.
    own = {token: n for n, token in enumerate([newline, *call[:-1], *answer[:-1]])}
    marked, seen, rest = len(own), len(own) + 1, len(own) + 2
    assert rest < embeddings.shape[1], "more tokens than dimensions"
    embeddings[:, rest] = 1.0
    for token, dimension in [*own.items(), (last, marked)]:
        embeddings[token, rest] = 0.0
        embeddings[token, dimension] = 1.0
    for chain in chains:
        for token, successor in itertools.pairwise(chain):
            head[successor, own[token]] = CERTAIN
    head[call[0], own[newline]] = 1.0
    head[answer[0], seen] = 1.0
    looking = model.model.layers[0].self_attn
    # Queries of 0 weigh all tokens equally. So the head's output is the share of `last` among the tokens.
    looking.q_proj.weight.zero_()
    looking.v_proj.weight.zero_()
    looking.v_proj.weight[0, marked] = 1.0
    # The norm before the layer turns the single 1 of an embedding into the square root of the number of
    # dimensions.
    looking.o_proj.weight[seen, 0] = SEEN / embeddings.shape[1] ** 0.5
