"""A bucket that refuses everything: boto3's own client, with one error as the answer to every request."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from headway_api.store import S3Store

ERROR = "<Error><Code>{code}</Code><Message>refused</Message></Error>"


class _Answer:
    """An answer with the attributes that botocore's HTTP session returns."""

    def __init__(self, status_code: int, content: bytes) -> None:
        self.status_code = status_code
        self.headers: dict[str, str] = {}
        self.content = content


def refusing_store(code: str, status: int) -> S3Store:
    """A store whose every request is refused with S3's error `code`."""
    client = boto3.client(
        "s3",
        region_name="eu-test-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )

    def answer(request: Any, **_: Any) -> _Answer:
        body = b"" if request.method == "HEAD" else ERROR.format(code=code).encode()
        return _Answer(status, body)

    client.meta.events.register("before-send.s3", answer)
    return S3Store(client)
