"""Runs inside vLLM's front process: every route of its port but `/health` needs the coordinator's key.

vLLM's own `--api-key` guards paths that begin with `/v1`, `/v2` and `/inference`. It leaves the development
endpoints open, which pause vLLM and replace its weights. `launch.py` names `AuthMiddleware` as vLLM's
middleware, which runs before every route. It has only the key's SHA-256, so vLLM's process has no secret.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from typing import Any, Final

ENV_DIGEST: Final = "HEADWAY_ENGINE_KEY_SHA256"
OPEN: Final = ("GET", "/health")
"""The one route that needs no key. It says whether vLLM is alive."""
SCHEME: Final = b"Bearer "
CLOSED: Final = 1008
"""Close code of a websocket: policy violation (RFC 6455)."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UNAUTHORIZED: Final = json.dumps(
    {
        "reason": "Unauthorized",
        "message": (
            "send this job's key coordinator-to-rollout (of a judge, coordinator-to-judge) as "
            "Authorization: Bearer"
        ),
    }
).encode()


class AuthMiddleware:
    """An ASGI application in front of another one, which it calls only for requests with the key."""

    def __init__(self, app: App) -> None:
        """Read the key's digest from the environment.

        Raises:
            KeyError: the variable is not set, so vLLM does not start.
            ValueError: it is not a SHA-256, so vLLM does not start.
        """
        self._app = app
        self._digest = bytes.fromhex(os.environ[ENV_DIGEST])
        if len(self._digest) != sha256().digest_size:
            raise ValueError(f"{ENV_DIGEST} is not a SHA-256; let the rollout server start vLLM")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests with the key, and the server's own messages (`lifespan`); refuse the rest."""
        kind = scope["type"]
        if kind == "lifespan" or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": CLOSED})
        else:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(UNAUTHORIZED)).encode()),
                (b"www-authenticate", b"Bearer"),
                (b"connection", b"close"),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": UNAUTHORIZED})

    def _may_pass(self, scope: Scope) -> bool:
        if (scope.get("method"), scope["path"]) == OPEN:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or not given[0].startswith(SCHEME):
            return False
        return hmac.compare_digest(sha256(given[0][len(SCHEME) :]).digest(), self._digest)


def digest(key: str) -> str:
    """The value of `ENV_DIGEST` for a key."""
    return sha256(key.encode()).hexdigest()
