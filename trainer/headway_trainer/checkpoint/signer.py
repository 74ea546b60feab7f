"""Signatures on the records of a checkpoint: write access to the bucket is not enough to forge one.

The learner reads a checkpoint's files with code that could run their content (pickle). The digests of these
files lie beside them in the bucket. So the records with the digests carry an HMAC. The signing key is derived
from a key that only the job's learner has (`Key.CHECKPOINTS`), for this purpose and this job only.
docs/adr/0029 and 0032 have the reasons and the alternatives.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, Final

from headway_api.artifacts import Layout
from headway_api.bounds import MIB, OutOfBoundsError, json_within
from headway_trainer.checkpoint.manifest import IncompleteCheckpointError

PURPOSE: Final = "headway.dev/checkpoint/v1"
MAX_BYTES: Final = 64 * MIB
"""Maximum bytes of a record: it names every file of a checkpoint, and every tensor of the weights."""
SIGNATURE: Final = "signature"


@dataclass(frozen=True)
class Signer:
    """Signs and opens the records of one job."""

    key: bytes

    @classmethod
    def of(cls, key: str, layout: Layout) -> Signer:
        """A signer with a key derived from the learner's `key` for one job (HKDF's expansion, RFC 5869)."""
        info = json.dumps([PURPOSE, layout.namespace, layout.name, layout.uid]).encode() + b"\x01"
        return cls(hmac.digest(key.encode(), info, "sha256"))

    def signed(self, content: dict[str, Any]) -> bytes:
        """`content` as JSON with its signature. The content itself must say what it describes."""
        return json.dumps({**content, SIGNATURE: self._signature(content)}).encode()

    def opened(self, uri: str, data: bytes) -> dict[str, Any]:
        """The signed content of the object at `uri`.

        Raises:
            IncompleteCheckpointError: the object was not signed by this job's key, or it is not a JSON
                object.
        """
        try:
            content = json_within(data, MAX_BYTES)
        except OutOfBoundsError as error:
            raise IncompleteCheckpointError(uri, f"it cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise IncompleteCheckpointError(uri, "it cannot be read: it is not a JSON object")
        found = content.pop(SIGNATURE, None)
        if not isinstance(found, str):
            raise IncompleteCheckpointError(uri, "it cannot be read: it has no signature")
        if not hmac.compare_digest(found.encode(), self._signature(content).encode()):
            raise IncompleteCheckpointError(uri, "its signature is not this job's: something else wrote it")
        return content

    def _signature(self, content: dict[str, Any]) -> str:
        # Sign the parsed values, so that a later version whose models have other fields can still read it.
        body = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hmac.new(self.key, body.encode(), hashlib.sha256).hexdigest()
