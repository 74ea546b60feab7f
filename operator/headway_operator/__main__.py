"""Runs the operator: `python -m headway_operator`."""

import sys

from headway_operator.app import main

if __name__ == "__main__":
    sys.exit(main())
