"""How a broker that remembers nothing knows a lease that the job has given from one that a sandbox makes up.

The token of a lease is a function of a key of the broker (`Key.LEASES`), the pod and the lease. The pod was
told it once, when it was bound. It shows that it has it by what it answers to a challenge; the token is not
sent again.
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
    """One that was never asked before."""
    return secrets.token_hex(32)


def proves(token: str, challenge: str, proof: str) -> bool:
    """Whether `proof` was made by who has `token`."""
    wanted = hmac.digest(token.encode(), f"{PROOF_PREFIX}{challenge}".encode(), "sha256").hex()
    return hmac.compare_digest(wanted.encode(), proof.encode(errors="replace"))
