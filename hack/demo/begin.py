"""First process of `make demo`: makes the Python environment, and builds the cluster's programs meanwhile.

Then this process becomes the demo (`execv`), which waits for the programs when it needs them. Standard
library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from headway_demo import programs

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "hack" / "python" / "env.py"


def main() -> None:
    """Make the environment, then become the demo."""
    build = None if os.environ.get("CLUSTER") == "current" else programs.begin()
    try:
        subprocess.run([sys.executable, ENVIRONMENT, "venv"], check=True)
        result = subprocess.run(
            [sys.executable, ENVIRONMENT, "path"], check=True, text=True, stdout=subprocess.PIPE
        )
    except BaseException:
        if build is not None:
            build.end()
        raise
    python = str(Path(result.stdout.strip()) / "bin" / "python")
    if build is not None:
        os.environ[programs.BEGUN] = str(build.pid)
    os.execv(python, [python, str(ROOT / "hack" / "demo" / "demo.py"), *sys.argv[1:]])


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)
