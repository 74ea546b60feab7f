"""Seeds of every random draw, each a pure function of its purpose.

The same job on the same data draws the same numbers, whatever the order of its episodes.
"""

from __future__ import annotations

import hashlib


def seed(*parts: object) -> int:
    """A seed below 2**31 for the purpose that `parts` name, such as (job seed, group id, index, turn)."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
