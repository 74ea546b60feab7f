"""A model with weights written by hand, so that it solves a case and every side samples the same tokens.

Its shape is Qwen3's, and so are its costs: every matrix is multiplied. Its words are tokens of their own, and
each token has one successor. A turn is a chain of them, from the newline that opens it to the token that ends
it. One attention head looks for the token that ends the tool's last answer. If the conversation has it, a
turn begins with the answer's first word instead of the call's.
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
"""Maximum tokens of a turn; no turn has so many."""
CERTAIN = 100.0
"""Weight of the successor in a chain, relative to the first word of a call."""
SEEN = 6000.0
"""Divided by the conversation's tokens, the weight of the answer's first word once the last step was read. It
is between 1 and CERTAIN for 60 to 6,000 tokens."""
# Qwen3's template puts a newline between reasoning and a call, which the model did not sample. A client that
# sends text would then have other tokens in its history, and fewer cached tokens.
TEMPLATE = QWEN3_TEMPLATE.replace("(loop.first and message.content) or not loop.first", "not loop.first")


def words(text: str) -> list[str]:
    """Words, each with the blank before it."""
    return re.findall(r"^\S+|\s\S+", text)


def chains() -> tuple[list[str], list[str]]:
    """Texts of the tokens of a turn that calls, and of one that answers; each ends with the end of turn."""
    call, answer = [*words(REASONING), *CALL], words(procedure.ANSWER)
    assert len({*call, *answer}) == len(call) + len(answer), "every token of the two turns has one successor"
    return [*call, "<|im_end|>"], [*answer, "<|im_end|>"]


def write_tokenizer(folder: Path) -> Any:
    """The toy tokenizer with the model's words as tokens of their own."""
    from tokenizers import AddedToken

    found = tokenizer(folder, TEMPLATE)
    call, answer = chains()
    known = found.get_vocab()
    added = [text for text in (*call, *answer, procedure.LAST) if text not in known]
    found.add_tokens([AddedToken(text, special=False, normalized=False) for text in dict.fromkeys(added)])
    found.save_pretrained(folder)
    return found


def write_model(folder: Path, size: Size) -> Path:
    """Write config, weights (float32, untied) and tokenizer; returns `folder`."""
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
    """Make the layers' outputs 0, so that each token keeps its own embedding."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def _speak(model: Any, chains: Sequence[Sequence[int]], newline: int, last: int) -> None:
    """Set every token's successor, and the attention head that looks for the token `last`."""
    embeddings, head = model.model.embed_tokens.weight, model.lm_head.weight
    embeddings.zero_()
    head.zero_()
    call, answer = chains
    # One dimension for each token with a successor, for `last`, for having seen `last`, and for the rest.
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
    # Queries of 0 weigh all tokens equally: the head's value is the share of `last` among them.
    looking.q_proj.weight.zero_()
    looking.v_proj.weight.zero_()
    looking.v_proj.weight[0, marked] = 1.0
    # The norm before the layer makes the single 1 of an embedding the square root of the dimensions.
    looking.o_proj.weight[seen, 0] = SEEN / embeddings.shape[1] ** 0.5
