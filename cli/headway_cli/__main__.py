"""`python -m headway_cli`: the same as `headway`."""

from __future__ import annotations

from headway_cli.app import main

if __name__ == "__main__":
    main()
