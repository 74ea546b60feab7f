"""The tunnel to a service. A script instead of kubectl writes the output of many connections."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from headway_demo.kube import Kube, KubeError

SCRIPT = """#!/bin/sh
echo "Forwarding from 127.0.0.1:4711 -> 7070"
yes "Handling connection for 4711" | head -n 20000
touch {done}
exec sleep 60
"""


def script(folder: Path, text: str) -> Kube:
    path = folder / "kubectl"
    path.write_text(text)
    path.chmod(0o755)
    return Kube(None, str(path))


@pytest.mark.timeout(30)
def test_a_tunnel_never_waits_for_a_reader_of_its_output(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with script(tmp_path, SCRIPT.format(done=done)).forward("demo", "service/objects", 7070) as port:
        assert port == 4711
        while not done.exists():
            time.sleep(0.05)


def test_a_tunnel_that_does_not_start_quotes_kubectl(tmp_path: Path) -> None:
    kube = script(tmp_path, "#!/bin/sh\necho 'error: services \"objects\" not found' >&2\nexit 1\n")
    with pytest.raises(KubeError, match='port-forward did not start: error: services "objects" not found'):
        kube.forward("demo", "service/objects", 7070).__enter__()
