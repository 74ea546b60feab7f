"""Writes and reads the demo's object store from outside the cluster."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import boto3

from headway_demo.settings import BUCKET


class Bucket:
    """The demo's bucket, reached through a port-forward."""

    def __init__(self, port: int, secret_key: str) -> None:
        self._s3 = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="headway",
            aws_secret_access_key=secret_key,
        )

    def create(self) -> None:
        """Create the bucket, unless it exists."""
        if BUCKET not in [b["Name"] for b in self._s3.list_buckets()["Buckets"]]:
            self._s3.create_bucket(Bucket=BUCKET)

    def upload(self, path: Path, key: str) -> None:
        """Upload a file, or every file of a folder under `key/`."""
        if path.is_dir():
            for child in sorted(path.iterdir()):
                self.upload(child, f"{key}/{child.name}")
        else:
            self._s3.upload_file(str(path), BUCKET, key)

    def put(self, uri: str, content: bytes) -> None:
        """Write one object. Its `uri` may name any bucket."""
        place = urlsplit(uri)
        self._s3.put_object(Bucket=place.netloc, Key=place.path.lstrip("/"), Body=content)

    def has(self, uri: str) -> bool:
        """Whether there is an object at `uri`."""
        key = urlsplit(uri).path.lstrip("/")
        found = self._s3.list_objects_v2(Bucket=BUCKET, Prefix=key, MaxKeys=1).get("Contents", [])
        return any(item["Key"] == key for item in found)

    def json(self, uri: str) -> dict[str, Any]:
        """The parsed content of a JSON object in the bucket."""
        found = self._s3.get_object(Bucket=BUCKET, Key=urlsplit(uri).path.lstrip("/"))
        return cast(dict[str, Any], json.loads(found["Body"].read()))

    def names(self, uri: str) -> list[str]:
        """The first 1,000 objects below `uri`, by their paths relative to it."""
        prefix = urlsplit(uri).path.lstrip("/").rstrip("/") + "/"
        found = self._s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return [item["Key"].removeprefix(prefix) for item in found]

    def download(self, uri: str, folder: Path) -> list[Path]:
        """Copy all objects below `uri` into `folder`, under their relative paths."""
        prefix = urlsplit(uri).path.lstrip("/").rstrip("/") + "/"
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        files = []
        for item in (item for page in pages for item in page.get("Contents", [])):
            path = folder / item["Key"].removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._s3.download_file(BUCKET, item["Key"], str(path))
            files.append(path)
        return files


def read_group(path: Path) -> dict[str, Any]:
    """The content of a stored GroupRecord."""
    return cast(dict[str, Any], json.loads(gzip.decompress(path.read_bytes())))
