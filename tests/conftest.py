"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Torch asks the DNS who is at the other end of each connection. An answer that was lost costs 5 s otherwise.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:2")


# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
