"""Families' own vocabularies, as packages ship them: real ids for real templates.

A vocabulary says which pieces there are and how they merge. The rules to split text are those that the
families' tokenizers publish. Tests check both against texts whose ids are known.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
QWEN_3_5_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Splits a text as Qwen3.5 and its successors do."""
QWEN_2_SPLIT: Final = QWEN_3_5_SPLIT.replace(r"[\p{L}\p{M}]", r"\p{L}").replace(r"\p{M}\p{N}", r"\p{N}")
"""Splits a text as Qwen2 to Qwen3 do."""
LLAMA_3_SPLIT: Final = QWEN_2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
"""Splits a text as Llama 3 does."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_SPLIT: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Splits a text as Llama 4 and gpt-oss do: the pattern of OpenAI's o200k."""
NORMAL, UNKNOWN = 1, 2
"""Kinds of pieces: those merged from others, and the one for text that has no piece."""
SPECIAL: Final = (3, 4)
"""Kinds of pieces: control pieces, and those that a user added."""
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
    """Return the metadata of a GGUF file, which comes before its tensors."""
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
"""Special tokens of Qwen3.5 and later, in the order of their ids, which follow those of the pieces."""


LLAMA_3_TOKENS: Final = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
    *("<|eot_id|>", "<|python_tag|>", "<|image|>"),
)
"""The first special tokens of Llama 3, from its tokenizer's module in `llama-models`."""
LLAMA_4_TOKENS: Final = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"),
    *(f"<|text_post_train_reserved_special_token_{number}|>" for number in range(6)),
    *("<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"),
)
"""The first special tokens of Llama 4, from the same source."""
TEKKEN_TOKENS: Final = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""The first special tokens of Mistral's Tekken, from `mistral-common`."""
LATER_TEKKEN_TOKENS: Final = {32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}
"""More special tokens of later models, by id, from recorded turns of those models."""


def ranked(path: Path) -> dict[bytes, int]:
    """Map each piece to its rank. Each line of the file has a piece in base 64, and its rank."""
    return {b64decode(piece): int(rank) for piece, rank in map(str.split, path.read_text().splitlines())}


def qwen(path: Path, split: str = QWEN_3_5_SPLIT) -> Any:
    """Return a tokenizer with a vocabulary of Qwen."""
    ranks = ranked(path)
    special = {token: len(ranks) + place for place, token in enumerate(QWEN_TOKENS)}
    return _byte_pairs(ranks, special, split, "<|im_end|>")


def llama_3(path: Path) -> Any:
    """Return a tokenizer with Llama 3's vocabulary."""
    ranks = ranked(path)
    special = {token: len(ranks) + place for place, token in enumerate(LLAMA_3_TOKENS)}
    return _byte_pairs(ranks, special, LLAMA_3_SPLIT, "<|eot_id|>", whole_words=True)


def llama_4(path: Path) -> Any:
    """Return a tokenizer with Llama 4's vocabulary."""
    ranks = ranked(path)
    special = {token: len(ranks) + place for place, token in enumerate(LLAMA_4_TOKENS)}
    return _byte_pairs(ranks, special, O200K_SPLIT, "<|eot|>", whole_words=True)


def tekken(path: Path) -> Any:
    """Return Mistral's Tekken, whose special tokens have the first ids."""
    read = json.loads(path.read_text())
    config = read["config"]
    first = config["default_num_special_tokens"]
    pieces = read["vocab"][: config["default_vocab_size"] - first]
    ranks = {b64decode(one["token_bytes"]): first + one["rank"] for one in pieces}
    special = {token: place for place, token in enumerate(TEKKEN_TOKENS)}
    special |= {token: place for place, token in LATER_TEKKEN_TOKENS.items()}
    return _byte_pairs(ranks, special, config["pattern"], "</s>", whole_words=True)


def deepseek(path: Path) -> Any:
    """Return the tokenizer in DeepSeek's own file."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<｜end▁of▁sentence｜>")


def gpt_oss() -> Any:
    """Return a tokenizer with gpt-oss's vocabulary, which OpenAI's encoder holds."""
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    names = encoding.special_tokens_set
    special = {token: encoding.encode(token, allowed_special="all")[0] for token in names}
    ranks = {bytes(encoding._inner.decode_bytes([place])): place for place in range(min(special.values()))}
    return _byte_pairs(ranks, special, O200K_SPLIT, "<|return|>", whole_words=True)


def _byte_pairs(
    ranks: Mapping[bytes, int],
    special: Mapping[str, int],
    split: str,
    eos: str,
    *,
    whole_words: bool = False,
) -> Any:
    """Make a tokenizer that merges the pair with the lowest rank first.

    Args:
        ranks: the id of each piece.
        special: the id of each special token.
        split: the pattern of a word; pieces merge only within a word.
        whole_words: whether a word that is itself a piece is never split.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    pairs = [
        (rank, ranks[piece[:cut]], piece[:cut], piece[cut:])
        for piece, rank in ranks.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ranks and piece[cut:] in ranks
    ]

    def spelled(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    merges = [(spelled(left), spelled(right)) for _, _, left, right in sorted(pairs)]
    vocabulary = {spelled(piece): rank for piece, rank in ranks.items()} | dict(special)
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole_words))
    words = pre_tokenizers.Split(Regex(split), "isolated")
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pieces])
    backend.decoder = decoders.ByteLevel()
    return _whole(backend, [*special], eos)


def gemma(path: Path) -> Any:
    """Return a tokenizer with Gemma 4's vocabulary, from a GGUF file."""
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


def mistral(path: Path) -> Any:
    """Return a tokenizer with an older vocabulary of Mistral, from a SentencePiece model."""
    from transformers.utils import sentencepiece_model_pb2_new as sentencepiece

    model: Any = sentencepiece.ModelProto()
    model.ParseFromString(path.read_bytes())
    kinds = [one.type for one in model.pieces]
    pieces = [str(one.piece) for one in model.pieces]
    special = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind in (UNKNOWN, *SPECIAL)]
    scores = [float(one.score) for one in model.pieces]
    return _scored(pieces, scores, [kind == NORMAL for kind in kinds], special, "</s>")


def _scored(
    pieces: Sequence[str], scores: Sequence[float], plain: Sequence[bool], special: Sequence[str], eos: str
) -> Any:
    """Make a tokenizer that merges into the piece with the highest score first.

    Args:
        pieces: all pieces, in the order of their ids.
        scores: the score of each piece.
        plain: whether a piece is made of others, and is neither special nor a byte.
        special: the special tokens.
        eos: the special token that ends a turn.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    pairs = [
        (-scores[place], vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece[:cut], piece[cut:])
        for place, piece in enumerate(pieces)
        if plain[place]
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    merges = [(left, right) for *_, left, right in sorted(pairs)]
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", BLANK)
    blanks = decoders.Replace(BLANK, " ")
    backend.decoder = decoders.Sequence([blanks, decoders.ByteFallback(), decoders.Fuse()])
    return _whole(backend, special, eos)


def _whole(backend: Any, special: Sequence[str], eos: str) -> Any:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)


def samples(path: Path) -> list[tuple[str, list[int]]]:
    """Return texts, each with its right ids."""
    texts = path.with_name(f"{path.name}.inp").read_text().split("\n__ggml_vocab_test__\n")
    ids = path.with_name(f"{path.name}.out").read_text().splitlines()
    return [(text, [int(one) for one in line.split()]) for text, line in zip(texts, ids, strict=False)]
