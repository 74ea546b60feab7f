"""The bearer token of an endpoint, as a file in the coordinator's pod."""

from __future__ import annotations

from pathlib import Path

from headway_api import names


class InvalidTokenError(Exception):
    """There is no token that can be sent. The message says what is wrong with the file's content."""


def read_token(folder: Path) -> str:
    """The token in a folder that the operator mounts from a Secret.

    Raises:
        InvalidTokenError: the token is missing or empty, or has characters that a header cannot have.
    """
    try:
        token = (folder / names.TOKEN_KEY).read_text(errors="replace").strip()
    except OSError:
        token = ""
    if token and token.isascii() and token.isprintable():
        return token
    raise InvalidTokenError("has characters that a header cannot have" if token else "is missing or empty")
