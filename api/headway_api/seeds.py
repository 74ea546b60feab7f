"""Seeds of everything that is drawn, each a pure function of what it is for.

The same job on the same data draws the same numbers, in whatever order its episodes happen to run.
"""

from __future__ import annotations

import hashlib


def seed(*parts: object) -> int:
    """A seed below 2**31 for whatever `parts` name, such as (job seed, group id, index, turn)."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
