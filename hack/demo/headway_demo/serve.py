"""Runs in the pod of the reference endpoint: fetches a model from the object store, then becomes vLLM.

The pod runs this source unchanged with `python -c`. So it imports only packages of the rollout image.
"""

import os
import sys
from pathlib import Path

import boto3

MODEL = Path("/tmp/model")


def fetch(bucket: str, prefix: str) -> None:
    """Download all objects directly below a prefix into the folder `MODEL`."""
    store = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"], region_name="us-east-1")
    MODEL.mkdir()
    for item in store.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]:
        store.download_file(bucket, item["Key"], str(MODEL / item["Key"].rpartition("/")[2]))


def arguments() -> list[str]:
    """vLLM's command line, with small caches for a model of about a megabyte."""
    served = ["--model", str(MODEL), "--served-model-name", "reference", "--port", "8000"]
    limits = ["--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", str(64 << 20)]
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    rest = ["--enforce-eager", "--distributed-executor-backend", "uni", "--uvicorn-log-level", "warning"]
    return ["-m", "vllm.entrypoints.openai.api_server", *served, *limits, *tools, *rest]


if __name__ == "__main__":
    fetch(os.environ["BUCKET"], os.environ["PREFIX"])
    os.execv(sys.executable, [sys.executable, *arguments()])
