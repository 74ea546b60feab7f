"""Settings of this machine that an image build inherits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "images"))

from headway_images.inherited import lines


def test_only_package_settings_are_inherited() -> None:
    environ = {
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "https_proxy": "http://proxy.example:3128",
        "UV_CACHE_DIR": "/cache",
        "PIP_FIND_LINKS": "/wheels",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/root",
    }
    assert lines(environ) == [
        "PIP_INDEX_URL=https://mirror.example/simple\n",
        "https_proxy=http://proxy.example:3128\n",
    ]


def test_a_shell_reads_back_what_was_set() -> None:
    value = "a b 'c' \"d\" $e"
    script = "".join(lines({"PIP_TRUSTED_HOST": value})) + 'printf %s "$PIP_TRUSTED_HOST"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout == value
