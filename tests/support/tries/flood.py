"""Sends a gateway more than it accepts, many times at once and without a token, from a stranger's pod:

    kubectl exec -i POD -- python3 - ADDRESS PORT TIMES BYTES < flood.py

The program prints one JSON list: the status and error code that each request got.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

PART = b"[" * 65536
PATIENCE_S = 30.0
HEAD = b"POST /complete-rollout HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"


def answered(number: int) -> list[object]:
    """Send one request, and return its status and error code. Every other request states no length."""
    address, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[4])
    chunked = number % 2 == 1
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    part = b"10000\r\n" + PART + b"\r\n" if chunked else PART
    try:
        with socket.create_connection((address, port), timeout=PATIENCE_S) as gateway:
            gateway.sendall(HEAD + length + b"\r\n\r\n")
            left = size
            while left > 0 and not select.select([gateway], [], [], 0)[0]:
                gateway.sendall(part)
                left -= len(PART)
            answer = b""
            while not answer.partition(b"\r\n\r\n")[2].endswith(b"}"):
                if not (more := gateway.recv(65536)):
                    return [0, f"closed after {answer!r}"]
                answer += more
    except OSError as error:
        return [0, f"{type(error).__name__}: {error}"]
    head, _, body = answer.partition(b"\r\n\r\n")
    return [int(head.split()[1]), json.loads(body)["error"]["code"]]


if __name__ == "__main__":
    times = int(sys.argv[3])
    with ThreadPoolExecutor(times) as threads:
        print(json.dumps(list(threads.map(answered, range(times)))))
