"""Server-sent events of Anthropic's Messages and OpenAI's Responses: each event's name is its type."""

from __future__ import annotations

import json
from typing import Any


def named_event(document: dict[str, Any]) -> bytes:
    """A server-sent event whose name is the document's `type`."""
    return f"event: {document['type']}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n".encode()
