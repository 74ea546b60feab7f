"""Runs a real API server and etcd for a benchmark, and reads the API server's audit log by user.

No controller, scheduler or kubelet runs. So every request comes from the measured process or the benchmark.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ports import free_port

from bench.support.machine import ROOT
from headway_api.document import Json

START_SECONDS = 120
ADMINISTRATOR, OPERATOR, COORDINATOR = "administrator", "operator", "coordinator"
USERS = (ADMINISTRATOR, OPERATOR, COORDINATOR)
APPLY = "application/apply-patch+yaml"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Request:
    """One request in the API server's audit log."""

    at: float
    """Unix time at which the request arrived."""
    user: str
    verb: str
    resource: str


class ControlPlane:
    """Access to the API server as the administrator, and kubeconfigs for other users."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._trust: ssl.SSLContext | None = None

    def kubeconfig(self, user: str) -> Path:
        """Write the kubeconfig of `user`, and return its path."""
        named = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "bench",
                    "cluster": {"server": self.url, "certificate-authority": str(self._authority)},
                }
            ],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": user}}],
            "current-context": "bench",
        }
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(json.dumps(named))
        return path

    @property
    def _authority(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    def call(
        self, method: str, path: str, body: Json | None = None, content: str = "application/json"
    ) -> Json:
        """Send one request as the administrator.

        Raises:
            RuntimeError: the API server refused the request; the message is the server's.
        """
        if self._trust is None:
            self._trust = ssl.create_default_context(cafile=str(self._authority))
        headers = {"Authorization": f"Bearer {ADMINISTRATOR}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._trust) as answer:
                found: Json = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from error

    def is_ready(self) -> bool:
        """Whether the API server answers and accepts the administrator."""
        try:
            self.call("GET", "/api/v1/namespaces/default")
        except (OSError, RuntimeError):
            return False
        return True

    def requests(self, user: str, since: float, until: float) -> list[Request]:
        """The user's requests from `since` to `until`. A watch counts once, at its start."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        found = [request for line in lines if (request := _request(line)) is not None]
        return [each for each in found if each.user == user and since <= each.at < until]


def _request(line: str) -> Request | None:
    try:
        event = json.loads(line)
    except ValueError:  # the last line may be half written
        return None
    begins = (
        event["stage"] == "ResponseStarted"
        if event["verb"] == "watch"
        else event["stage"] == "ResponseComplete"
    )
    if not begins:
        return None
    at = datetime.fromisoformat(event["requestReceivedTimestamp"].replace("Z", "+00:00"))
    resource = event.get("objectRef", {}).get("resource", event["requestURI"])
    subresource = event.get("objectRef", {}).get("subresource")
    name = f"{resource}/{subresource}" if subresource else resource
    return Request(at.astimezone(UTC).timestamp(), event["user"]["username"], event["verb"], name)


def tally(requests: list[Request]) -> list[tuple[str, int]]:
    """Each verb and resource with its number of requests, most frequent first."""
    return Counter(f"{each.verb} {each.resource}" for each in requests).most_common()


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Run etcd and the API server during the block."""
    (folder / "certificates").mkdir(parents=True)
    (folder / "audit-policy.yaml").write_text(json.dumps(AUDIT_POLICY))
    groups = {ADMINISTRATOR: "system:masters"}
    rows = [f"{user},{user},{user},{groups.get(user, 'bench')}" for user in USERS]
    (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
    key = folder / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    etcd_port, peer_port, port = free_port(), free_port(), free_port()
    with (
        _daemon(folder, "etcd", _etcd(folder, etcd_port, peer_port)),
        _daemon(folder, "kube-apiserver", _api_server(folder, key, etcd_port, port)) as process,
    ):
        plane = ControlPlane(folder, f"https://127.0.0.1:{port}")
        deadline = time.monotonic() + START_SECONDS
        while not plane.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                log = (folder / "kube-apiserver.log").read_text()[-2000:]
                raise RuntimeError(f"kube-apiserver does not answer: {log}")
            time.sleep(0.2)
        yield plane


def programs() -> Path:
    """Folder of the local cluster's programs.

    Raises:
        RuntimeError: they have not been built.
    """
    script = str(ROOT / "hack" / "cluster" / "cluster.py")
    done = subprocess.run(
        ["/usr/bin/python3", script, "env"], check=True, text=True, stdout=subprocess.PIPE, timeout=60
    )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("export PATH=")]
    folder = Path(line.removeprefix("export PATH=").removesuffix(":$PATH").strip("'"))
    if not (folder / "kube-apiserver").exists():
        raise RuntimeError(
            f"{folder}/kube-apiserver is missing: build it with {script} up, then {script} down"
        )
    return folder


def _etcd(folder: Path, port: int, peer_port: int) -> list[str]:
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        "etcd",
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _api_server(folder: Path, key: Path, etcd_port: int, port: int) -> list[str]:
    return [
        str(programs() / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}/certificates",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=AlwaysAllow",
        # No controller creates the service accounts that pods name.
        "--disable-admission-plugins=ServiceAccount",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://bench.invalid",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--audit-policy-file={folder}/audit-policy.yaml",
        f"--audit-log-path={folder}/audit.log",
        "--audit-log-mode=blocking",
        "--profiling=false",
    ]


@contextmanager
def _daemon(folder: Path, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
