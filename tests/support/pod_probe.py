"""Reports what a process in a pod can reach and do. It runs in the pod, with the standard library only:

    kubectl exec -i POD -- python3 - TARGETS < pod_probe.py

TARGETS is JSON: name -> ["tcp" | "dns", address, port]. The program prints one JSON object: the targets that
were reached, whether a name resolves, and what the pod's first process may do. In a sandbox, the object also
has the episode that leases it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time

PATIENCE_S = 3.0
"""Seconds to wait for all targets together, since dropped packets are never answered."""
NAME = "kubernetes.default.svc.cluster.local"
FOLDERS = ("/", "/tmp", "/etc", "/environment", "/opt/headway", "/var", "/root", "/run/headway")
SANDBOX = ("127.0.0.1", 8080)


def question(name: str) -> bytes:
    """A DNS query for an address."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + labels + b"\x00\x00\x01\x00\x01"


def knock(kind: str, address: str, port: int) -> tuple[socket.socket, int] | None:
    """A connecting socket, and the poll event of success; None if the connection is refused at once."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    knocking = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    knocking.setblocking(False)
    try:
        knocking.connect((address, port))
        if kind == "dns":
            knocking.send(question(NAME))
    except BlockingIOError:
        pass
    except OSError:
        return None
    return knocking, select.POLLOUT if kind == "tcp" else select.POLLIN


def reached(targets: dict[str, list[object]]) -> list[str]:
    """The targets where a connection opened, or a DNS query was answered. All are tried at the same time."""
    poll, waiting, found = select.poll(), {}, []
    for name, (kind, address, port) in targets.items():
        if (sent := knock(str(kind), str(address), int(str(port)))) is not None:
            waiting[sent[0].fileno()] = (name, sent[0])
            poll.register(*sent)
    ends = time.monotonic() + PATIENCE_S
    while waiting and (left := ends - time.monotonic()) > 0:
        for number, _ in poll.poll(left * 1000):
            name, knocking = waiting.pop(number)
            poll.unregister(number)
            if knocking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.append(name)
    return sorted(found)


def resolves(name: str) -> bool:
    """Whether the pod's own resolver knows `name`."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def writable(folder: str) -> bool:
    """Whether a file can be made in `folder`."""
    path = os.path.join(folder, f".probe-{os.getpid()}")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    except OSError:
        return False
    os.unlink(path)
    return True


def rights() -> dict[str, str]:
    """Users, capabilities and filters of the pod's first process, as the kernel writes them."""
    wanted = ("Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    with open("/proc/1/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return {name: " ".join(lines[name].split()) for name in wanted}


def readable() -> list[str]:
    """What this process can open of the pod's first process: its environment variables, and its memory."""
    found = []
    for part in ("environ", "mem"):
        try:
            os.close(os.open(f"/proc/1/{part}", os.O_RDONLY))
            found.append(part)
        except OSError:
            pass
    return found


def lease() -> str | None:
    """The episode that leases this sandbox, by the sandbox's own server; None in any other pod."""
    try:
        with socket.create_connection(SANDBOX, timeout=PATIENCE_S) as server:
            server.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: server.recv(4096), b""))
    except OSError:
        return None
    held: str | None = json.loads(answer.partition(b"\r\n\r\n")[2])["lease"]
    return held


def look(targets: dict[str, list[object]]) -> dict[str, object]:
    """Everything that the probe finds out."""
    with open("/proc/mounts") as mounts:
        places = [line.split()[1] for line in mounts]
    return {
        "lease": lease(),
        "reached": reached(targets),
        "resolves": resolves(NAME),
        "rights": rights(),
        "read_only_root": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "writable": [folder for folder in FOLDERS if os.path.isdir(folder) and writable(folder)],
        "readable": readable(),
        "mounts": places,
        "environment": sorted(os.environ),
    }


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))))
