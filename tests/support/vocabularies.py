"""Families' own vocabularies, as packages ship them: real ids for real templates.

A vocabulary says which pieces there are and how they merge. How text is split is what the tokenizers of the
families publish. The tests hold both to texts whose ids are known.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
QWEN_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen3.5 and its successors split a text."""
SPECIAL: Final = (3, 4)
"""Kinds of pieces: those that control, and those that a user added."""
BLANK: Final = "▁"


def _read(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        (size,) = struct.unpack_from("<Q", data, at)
        return bytes(data[at + 8 : at + 8 + size]).decode(), at + 8 + size
    if kind == _LIST:
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        if inner in _SCALARS:
            form = f"<{count}{_SCALARS[inner]}"
            return list(struct.unpack_from(form, data, at)), at + struct.calcsize(form)
        found = []
        for _ in range(count):
            one, at = _read(data, at, inner)
            found.append(one)
        return found, at
    form = f"<{_SCALARS[kind]}"
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def facts(path: Path) -> dict[str, Any]:
    """What a file in GGUF says before its tensors."""
    data = memoryview(path.read_bytes())
    magic, _, _, count = struct.unpack_from("<4sIQQ", data)
    assert magic == b"GGUF", path
    at, found = 24, {}
    for _ in range(count):
        name, at = _read(data, at, _STRING)
        (kind,) = struct.unpack_from("<I", data, at)
        found[name], at = _read(data, at + 4, kind)
    return found


QWEN_TOKENS: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
    *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>"),
    *("</tool_response>", "<think>", "</think>"),
)
"""Special tokens of Qwen3.5 and later, in the order of their ids, which begin behind the pieces'."""


def qwen(path: Path) -> Any:
    """Qwen3.5's vocabulary and its successors', of pieces and their ranks in base 64."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    ranks = {b64decode(piece): int(rank) for piece, rank in map(str.split, path.read_text().splitlines())}
    pairs = [
        (rank, ranks[piece[:cut]], piece[:cut], piece[cut:])
        for piece, rank in ranks.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ranks and piece[cut:] in ranks
    ]

    def spelled(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    merges = [(spelled(left), spelled(right)) for _, _, left, right in sorted(pairs)]
    vocabulary = {spelled(piece): rank for piece, rank in ranks.items()}
    vocabulary |= {token: len(ranks) + place for place, token in enumerate(QWEN_TOKENS)}
    backend = Tokenizer(models.BPE(vocabulary, merges))
    words = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pieces])
    backend.decoder = decoders.ByteLevel()
    return _whole(backend, QWEN_TOKENS, "<|im_end|>")


def gemma(path: Path) -> Any:
    """Gemma 4's vocabulary, of a file in GGUF."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    metadata = facts(path)
    pieces, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", BLANK)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    blanks = decoders.Replace(BLANK, " ")
    backend.decoder = decoders.Sequence([blanks, decoders.ByteFallback(), decoders.Fuse()])
    special = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind in SPECIAL]
    return _whole(backend, special, pieces[metadata["tokenizer.ggml.eos_token_id"]])


def _whole(backend: Any, special: Sequence[str], eos: str) -> Any:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)


def samples(path: Path) -> list[tuple[str, list[int]]]:
    """Texts, each with the ids that it must have."""
    texts = path.with_name(f"{path.name}.inp").read_text().split("\n__ggml_vocab_test__\n")
    ids = path.with_name(f"{path.name}.out").read_text().splitlines()
    return [(text, [int(one) for one in line.split()]) for text, line in zip(texts, ids, strict=False)]
