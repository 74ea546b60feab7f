"""Server-sent events as Anthropic's and OpenAI's newer protocols write them: each named by its type."""

from __future__ import annotations

import json
from typing import Any


def named_event(document: dict[str, Any]) -> bytes:
    """A server-sent event, named by its type."""
    return f"event: {document['type']}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n".encode()
