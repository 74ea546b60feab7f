"""Seeds of everything that is drawn, each a pure function of what it is for."""

from __future__ import annotations

from headway_api.seeds import seed as seed
