"""What the demo prints at its end."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

import demo
from headway_demo.kube import Kube
from headway_demo.platform import Platform
from headway_demo.settings import Settings


def test_the_demo_says_how_to_look_at_what_it_keeps() -> None:
    message = demo.finish(Platform(Kube(Path("/k/config")), {}, "key"), Settings.from_environ({"KEEP": "1"}))
    assert message.splitlines() == [
        "kept:",
        "  KUBECONFIG=/k/config kubectl -n headway-demo describe rltj sop-quickstart",
        "  KUBECONFIG=/k/config kubectl -n headway-demo get rlev sop-quickstart",
        "  KUBECONFIG=/k/config kubectl -n headway-demo describe rlev sop-quickstart",
    ]
