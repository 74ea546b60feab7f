"""Explains the artifact store's refusals to the author of `spec.output`, or to a person at a shell."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from headway_api.bounds import shortened
from headway_api.store_unavailable import status_of

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

WORDS: Final = 300
"""Maximum characters of an error's own message that are repeated."""
ERRNO: Final = re.compile(r"\[Errno -?\d+\] ([A-Za-z ,]+)")
"""Finds the operating system's message about a connection in the text that three libraries add around it."""


class Remedies(NamedTuple):
    """What to write, for each thing that may be wrong."""

    keys: str
    """What to do if there are no credentials."""
    credentials: str
    """What to do if the store refuses the credentials."""
    address: str
    """What to do if the store does not answer."""
    bucket: str
    """What to do if there is no such bucket."""
    other: str
    """What to do if the store refuses the request for another reason."""
    set_up: str
    """What to do if the client cannot be set up."""


JOB: Final = Remedies(
    keys="name a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in spec.output.secretRef, or give "
    "the job's service account an identity",
    credentials="correct the Secret of spec.output.secretRef or roleSecretRefs, or give its identity access",
    address="correct spec.output.endpointUrl, or let the pods of this job reach it",
    bucket="create it, or correct its name or spec.output.endpointUrl",
    other="correct spec.output.uri or spec.output.endpointUrl",
    set_up="correct spec.output",
)
"""Advice for the author of a job."""
SHELL: Final = Remedies(
    keys="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in this shell, or AWS_PROFILE to a profile or role "
    "that may read it",
    credentials="correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in this shell, or give "
    "their identity access",
    address="correct --endpoint-url, or let this machine reach it",
    bucket="correct its name or --endpoint-url",
    other="correct the address of the bucket or --endpoint-url",
    set_up="correct the variables AWS_* of this shell, or its file ~/.aws/config",
)
"""Advice for a person whose command uses the store from this machine."""


class StoreRefusal(NamedTuple):
    """Why a bucket cannot be used, and how to correct it."""

    wrong: str
    fix: str


def refusal(error: Exception, remedies: Remedies = JOB) -> StoreRefusal:
    """What is wrong, and how to correct it, for an error of a request to the store. If the error has a cause
    (`raise ... from`), the cause decides."""
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
        return _answered(cause, remedies)
    if isinstance(cause, ParamValidationError):
        message = str(cause).removeprefix("Parameter validation failed:\n").partition(": Bucket name must")[0]
        return StoreRefusal(f"no bucket can have this name ({shortened(message, WORDS)})", "correct it")
    if isinstance(cause, NoCredentialsError | PartialCredentialsError):
        return StoreRefusal("no credentials", remedies.keys)
    if isinstance(cause, ConnectionError | HTTPClientError):
        return StoreRefusal(_silent(cause), remedies.address)
    return StoreRefusal(shortened(str(cause), WORDS), remedies.set_up)


def _silent(error: BaseException) -> str:
    """Who does not answer, and the operating system's message about it."""
    details = getattr(error, "kwargs", {})
    found = ERRNO.search(str(details.get("error", "")))
    why = f" ({found[1].strip()})" if found else ""
    return f"{details.get('endpoint_url') or 'the store'} does not answer{why}"


def _answered(error: ClientError, remedies: Remedies) -> StoreRefusal:
    answer, status = error.response["Error"], status_of(error)
    code = str(answer.get("Code", status))
    named = "" if code.isdigit() else f" ({code})"
    if code == "NoSuchBucket" or status == HTTPStatus.NOT_FOUND:
        return StoreRefusal(f"there is no such bucket{named}", remedies.bucket)
    if status == HTTPStatus.FORBIDDEN:
        return StoreRefusal(f"the store refuses the credentials{named}", remedies.credentials)
    words = shortened(str(answer.get("Message") or "it does not say why"), WORDS)
    return StoreRefusal(f"the store answers {code}: {words}", remedies.other)
