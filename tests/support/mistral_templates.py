"""Prints Mistral's own chat templates as JSON. The python of requirements/guests/mistral.txt runs this file.

GUEST tests/support/mistral_templates.py
"""

from __future__ import annotations

import json

from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
from mistral_common.tokens.tokenizers.base import TokenizerVersion

VERSIONS = {"v3": False, "v7": False, "v11": False, "v13": True}
"""Version of the tokenizer -> whether its models reason."""
SENTENCE_PIECE = ("v3", "v7")
"""Versions whose first models have a vocabulary of SentencePiece. The others have a
vocabulary of Tekken."""


def template(version: str, *, thinks: bool) -> str:
    """The template of a version for text without images or audio."""
    return generate_chat_template(
        spm=version in SENTENCE_PIECE,
        tokenizer_version=TokenizerVersion(version),
        image_support=False,
        audio_support=False,
        thinking_support=thinks,
        default_system_prompt=None,
        plain_thinking_support=False,
        use_special_token_variables=True,
        model_settings_fields=None,
        reasoning_effort_values=None,
        reasoning_effort_default=None,
    )


if __name__ == "__main__":
    print(json.dumps({version: template(version, thinks=thinks) for version, thinks in VERSIONS.items()}))
