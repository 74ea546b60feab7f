"""Signatures on the records of a checkpoint: whoever may write the bucket cannot write one.

A checkpoint's files are read back by code that could run what is in them (pickle). Their digests vouch for
them, and lie beside them; so the records that hold digests carry an HMAC, by a key that only the job's
learner has (`Key.CHECKPOINTS`). What signs is derived from it, for this purpose and this job alone.
docs/adr/0029 and 0032 have the reasons, and what else was thought of.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, Final

from headway_api.artifacts import Layout
from headway_api.bounds import MIB, OutOfBounds, json_within
from headway_trainer.checkpoint.manifest import NotWhole

PURPOSE: Final = "headway.dev/checkpoint/v1"
MOST: Final = 64 * MIB
"""Bytes of a record: it names every file of a checkpoint, and every tensor of the weights."""
SIGNATURE: Final = "signature"


@dataclass(frozen=True)
class Signer:
    """Signs and opens the records of one job."""

    key: bytes

    @classmethod
    def of(cls, key: str, layout: Layout) -> Signer:
        """With what is derived from the learner's `key` for one job (HKDF's expansion, RFC 5869)."""
        info = json.dumps([PURPOSE, layout.namespace, layout.name, layout.uid]).encode() + b"\x01"
        return cls(hmac.digest(key.encode(), info, "sha256"))

    def signed(self, content: dict[str, Any]) -> bytes:
        """`content`, which says itself what it is of, as JSON with its signature."""
        return json.dumps({**content, SIGNATURE: self._signature(content)}).encode()

    def opened(self, uri: str, data: bytes) -> dict[str, Any]:
        """What was signed, of the object at `uri`.

        Raises:
            NotWhole: it was not signed by this job's key; or it is no JSON object.
        """
        try:
            content = json_within(data, MOST)
        except OutOfBounds as error:
            raise NotWhole(uri, f"it cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise NotWhole(uri, "it cannot be read: it is no JSON object")
        found = content.pop(SIGNATURE, None)
        if not isinstance(found, str):
            raise NotWhole(uri, "it cannot be read: it carries no signature")
        if not hmac.compare_digest(found.encode(), self._signature(content).encode()):
            raise NotWhole(uri, "its signature is not this job's: something else has written it")
        return content

    def _signature(self, content: dict[str, Any]) -> str:
        # Of the parsed values, so that a later version with other fields in its models reads it all the same.
        body = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hmac.new(self.key, body.encode(), hashlib.sha256).hexdigest()
