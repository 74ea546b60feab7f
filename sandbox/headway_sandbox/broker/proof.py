"""Lets a restarted broker distinguish a lease that a broker granted from one that a sandbox made up.

The token of a lease is a function of the broker's key (`Key.LEASES`), the pod and the lease. The pod received
the token once, when it was bound to the lease. Later it proves that it has the token by its answer to a
challenge, so the token is not sent again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from headway_api.sandbox_api import PROOF_PREFIX


def token_of(key: bytes, uid: str | None, lease: str) -> str:
    """The token of one lease on one pod."""
    return hmac.new(key, f"{uid}/{lease}".encode(), hashlib.sha256).hexdigest()


def challenge() -> str:
    """A challenge that was never used before."""
    return secrets.token_hex(32)


def proves(token: str, challenge: str, proof: str) -> bool:
    """Whether `proof` was made with `token`."""
    wanted = hmac.digest(token.encode(), f"{PROOF_PREFIX}{challenge}".encode(), "sha256").hex()
    return hmac.compare_digest(wanted.encode(), proof.encode(errors="replace"))
