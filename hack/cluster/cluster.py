#!/usr/bin/python3
"""Entry point of the local cluster: `python3 hack/cluster/cluster.py up`."""

from __future__ import annotations

import sys

from headway_cluster.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
