"""Explains the artifact store's refusals to the author of `spec.output`: what is wrong, and what to write."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from headway_api.bounds import shortened
from headway_api.store_unavailable import status_of

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

CREDENTIALS: Final = (
    "correct the Secret of spec.output.secretRef or roleSecretRefs, or give its identity access"
)
KEYS: Final = (
    "name a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in spec.output.secretRef, or give the "
    "job's service account an identity"
)
ADDRESS: Final = "correct spec.output.endpointUrl, or let the pods of this job reach it"
WORDS: Final = 300
"""Characters kept of an error's own words."""
ERRNO: Final = re.compile(r"\[Errno -?\d+\] ([A-Za-z ,]+)")
"""The operating system's message about a connection, within what three libraries add around it."""


class StoreRefusal(NamedTuple):
    """Why a bucket cannot be used."""

    wrong: str
    fix: str


def refusal(error: Exception) -> StoreRefusal:
    """The meaning of the error that a request to the store ended with, or of the one that it was raised
    from."""
    from botocore.exceptions import (
        ClientError,
        ConnectionError,
        HTTPClientError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )

    cause = error.__cause__ or error
    if isinstance(cause, ClientError):
        return _answered(cause)
    if isinstance(cause, ParamValidationError):
        message = str(cause).removeprefix("Parameter validation failed:\n").partition(": Bucket name must")[0]
        return StoreRefusal(f"no bucket can have this name ({shortened(message, WORDS)})", "correct it")
    if isinstance(cause, NoCredentialsError | PartialCredentialsError):
        return StoreRefusal("no credentials", KEYS)
    if isinstance(cause, ConnectionError | HTTPClientError):
        return StoreRefusal(_silent(cause), ADDRESS)
    return StoreRefusal(shortened(str(cause), WORDS), "correct spec.output")


def _silent(error: BaseException) -> str:
    """Who does not answer, and the operating system's message about it."""
    details = getattr(error, "kwargs", {})
    found = ERRNO.search(str(details.get("error", "")))
    why = f" ({found[1].strip()})" if found else ""
    return f"{details.get('endpoint_url') or 'the store'} does not answer{why}"


def _answered(error: ClientError) -> StoreRefusal:
    answer, status = error.response["Error"], status_of(error)
    code = str(answer.get("Code", status))
    named = "" if code.isdigit() else f" ({code})"
    if code == "NoSuchBucket" or status == HTTPStatus.NOT_FOUND:
        fix = "create it, or correct its name or spec.output.endpointUrl"
        return StoreRefusal(f"there is no such bucket{named}", fix)
    if status == HTTPStatus.FORBIDDEN:
        return StoreRefusal(f"the store refuses the credentials{named}", CREDENTIALS)
    words = shortened(str(answer.get("Message") or "it does not say why"), WORDS)
    return StoreRefusal(
        f"the store answers {code}: {words}", "correct spec.output.uri or spec.output.endpointUrl"
    )
