"""Families of models: the context that their configurations allow, and the learning rates to start with.

These are published facts, each with its source. None of them was tuned with this platform. docs/recipes.md
has them as a table.
"""

import re
from dataclasses import dataclass
from typing import Final

RANK: Final = 32
"""Rank of the adapter, in every recipe."""


@dataclass(frozen=True)
class StartingRates:
    """Learning rates to start with, for a family's models of some sizes."""

    models: str
    """Names of the models, for people to read."""
    lora: float
    lora_source: str
    full_source: str
    sizes: str = ""
    """Regular expression that is searched in the model's name, in lower case. The empty expression matches
    every name."""
    alpha: int = 32
    """Alpha of the adapter, as in the run that the rate is from. Half of it makes steps half as large."""
    full: float = 1e-6
    """Learning rate when every weight is trained."""


@dataclass(frozen=True)
class ModelFamily:
    """Models whose configurations allow the same context."""

    name: str
    models: str
    """Regular expression, in RE2's syntax and lower case, for the whole name of a model. The part of the name
    that says how weights are stored (FP8, AWQ, ...) is left out."""
    context_length: int
    """Tokens: max_position_embeddings of the configurations as published."""
    starts: tuple[StartingRates, ...]
    """Recipes for the family's models. The first one whose `sizes` match the model applies."""
    says_context: bool = True
    """Whether config.json has this number. If not, a job has to set spec.model.contextLength, and the
    preflight uses the number above."""

    @property
    def pattern(self) -> str:
        """Regular expression, in RE2's syntax, that is searched in `spec.model.base`."""
        return f"(?i)/({self.models}){STORED}/*$"


@dataclass(frozen=True)
class Recipe:
    """Where to start with one model."""

    family: ModelFamily
    start: StartingRates


STORED: Final = "(-(unsloth|bnb|fp8|dynamic|awq|gptq|int4|int8|4bit|8bit|bf16))*"

GSM8K: Final = "Tinker cookbook, rl_basic: Llama-3.1-8B on GSM8K to 63 % in 15 steps of 128 x 16"
LIVE_CODE: Final = (
    "Tinker cookbook, code_rl: Qwen3-4B-Instruct-2507 from 33.8 to 42.7 % in 100 steps of 128 x 8"
)
MATH: Final = "Tinker cookbook, math_rl and gem_rl: Qwen3-8B and its Base, steps of 64 x 16"
SWEEP: Final = "0.3 of Qwen3-4B's, as in Tinker's sweep for 32B and 235B; nothing published for 480B and Next"
SCALED: Final = "Llama-3.1-8B's times (4096 / hidden size)^0.781, Tinker's rule for Llama"
TENFOLD: Final = "ten times that of full weights (LoRA Without Regret)"
DAPO: Final = "DAPO (arXiv 2503.14476)"
SEARCH: Final = "Search-R1 (arXiv 2503.09516)"

QWEN3: Final = (
    StartingRates(
        "Qwen3, 32B, 235B, 480B, Next", 1e-5, SWEEP, "verl, dapo: Qwen3-30B-A3B", r"-(32|80|235|480)b|-next"
    ),
    StartingRates("Qwen3, 8B, 14B, 30B-A3B", 2e-5, MATH, "verl, dapo: Qwen3-30B-A3B", r"-(8|14|30)b"),
    StartingRates("Qwen3, to 4B", 4e-5, LIVE_CODE, "TRL, lora_without_regret: Qwen3-0.6B"),
)
QWEN35: Final = (
    StartingRates(
        "Qwen3.5", 4e-5, "Tinker cookbook, rl_basic: Qwen3.5-9B-Base, steps of 128 x 16", "as Qwen3"
    ),
)
QWEN25: Final = (
    StartingRates("Qwen2.5", 3e-5, "verl, ppo_lora: Qwen2.5-72B, steps of 64 x 5", f"{SEARCH}: 3B and 7B"),
)
LLAMA: Final = (
    StartingRates("Llama 3, 1B", 7e-5, SCALED, f"{SEARCH}: Llama-3.2-3B", "-1b"),
    StartingRates("Llama 3, 3B", 5e-5, SCALED, f"{SEARCH}: Llama-3.2-3B", "-3b"),
    StartingRates("Llama 3, 70B", 2e-5, SCALED, "as Llama-3.1-8B", "-70b"),
    StartingRates("Llama 3, 405B", 1e-5, SCALED, "as Llama-3.1-8B", "-405b"),
    StartingRates("Llama 3, 8B", 4e-5, GSM8K, f"{SEARCH}: Llama-3.1-8B"),
)
SAGEMAKER: Final = "SageMaker's multi-turn RL recipe for gpt-oss-20b"
GPT_OSS: Final = (StartingRates("gpt-oss", 1e-5, SAGEMAKER, "verl, dapo: gpt-oss-20b", alpha=64),)
DISTILLED: Final = (StartingRates("DeepSeek-R1 distilled", 1e-5, TENFOLD, "as Qwen2.5 and Llama"),)
GEMMA: Final = (StartingRates("Gemma 2, 3", 1e-5, TENFOLD, "verl, ppo_trainer: gemma-2-2b-it"),)
MISTRAL: Final = (StartingRates("Mistral", 1e-5, TENFOLD, "verl, grpo_trainer: Mistral-Small-3.1-24B"),)

FAMILIES: Final = (
    ModelFamily("gpt-oss", "gpt-oss-(safeguard-)?(20|120)b", 131072, GPT_OSS),
    ModelFamily("Qwen3.5", r"qwen3\.5-[0-9.]+b(-a[0-9]+b)?(-base)?", 262144, QWEN35),
    ModelFamily("Qwen3 2507", "qwen3-[0-9]+b(-a[0-9]+b)?-(instruct|thinking)-2507", 262144, QWEN3),
    ModelFamily("Qwen3 Coder", "qwen3-coder-(next(-base)?|[0-9]+b-a[0-9]+b-instruct)", 262144, QWEN3),
    ModelFamily("Qwen3 Next", "qwen3-next-80b-a3b-(instruct|thinking)", 262144, QWEN3),
    ModelFamily("Qwen3 Base", r"qwen3-(0\.6|1\.7|4|8|14|30b-a3)b-base", 32768, QWEN3),
    ModelFamily("Qwen3", r"qwen3-(0\.6|1\.7|4|8|14|32|30b-a3|235b-a22)b", 40960, QWEN3),
    ModelFamily("DeepSeek-R1-0528 of Qwen3", "deepseek-r1-0528-qwen3-8b", 131072, QWEN3),
    ModelFamily("DeepSeek-R1 distilled", "deepseek-r1-distill-(qwen|llama)-[0-9.]+b", 131072, DISTILLED),
    ModelFamily("Qwen2.5 Math", r"qwen2\.5-math-[0-9.]+b(-instruct)?", 4096, QWEN25),
    ModelFamily("Qwen2.5 Base", r"qwen2\.5-(1\.5|7|14|32|72)b", 131072, QWEN25),
    ModelFamily(
        "Qwen2.5", r"qwen2\.5-((0\.5|3)b|[0-9.]+b-instruct|coder-[0-9.]+b(-instruct)?)", 32768, QWEN25
    ),
    ModelFamily("Llama 3.1 to 3.3", r"(meta-)?llama-3\.[123]-(1|3|8|70|405)b(-instruct)?", 131072, LLAMA),
    ModelFamily("Llama 3", "(meta-)?llama-3-(8|70)b(-instruct)?", 8192, LLAMA),
    ModelFamily("Gemma 3, small", "gemma-3-(270m|1b)(-it|-pt)?", 32768, GEMMA),
    ModelFamily("Gemma 3", "gemma-3-(4|12|27)b-(it|pt)", 131072, GEMMA, says_context=False),
    ModelFamily("Gemma 2", "gemma-2-(2|9|27)b(-it)?", 8192, GEMMA),
    ModelFamily(
        "Mistral Small 3.1, 3.2", r"mistral-small-3\.[12]-24b-(base|instruct)-250[36]", 131072, MISTRAL
    ),
    ModelFamily(
        "Mistral",
        r"mistral-(7b(-instruct)?-v0\.[123]|small-instruct-2409|small-24b-(base|instruct)-2501)",
        32768,
        MISTRAL,
    ),
)
"""All known families. The first one whose pattern matches the model applies."""

OTHER: Final = StartingRates(
    "any other", 4e-5, "default of SageMaker's multi-turn RL", f"{DAPO}: Qwen2.5-32B", alpha=64
)
"""Where to start with a model of an unknown family."""


def recipe(base: str) -> Recipe | None:
    """Where to start with the model at `spec.model.base`; None if its family is unknown."""
    family = next((known for known in FAMILIES if re.search(known.pattern, base)), None)
    if family is None:
        return None
    name = base.rstrip("/").rpartition("/")[2].lower()
    start = next(start for start in family.starts if re.search(start.sizes, name))
    return Recipe(family, start)
