"""The clean tasks, in which no check may find a fault."""

from __future__ import annotations

import sys

from tests.traps.trap import TASKS, Task

sys.path.insert(0, str(TASKS))
import orders
import parcels
import returns
import sums
import triage

JOB = {"max_turns": 10, "max_tokens": 96, "context_length": 4096}
"""Limits that leave each task some room."""
PARCELS = Task("parcels", "parcels:Parcels", parcels.rows, facts=JOB)
TRIAGE = Task("triage", "triage:Triage", triage.rows, facts=JOB)
SUMS = Task("sums", "sums:Sums", sums.rows, facts=JOB)
ORDERS = Task("orders", "orders:Orders", orders.rows, facts=JOB | {"contract": orders.contract()})
RETURNS = Task("returns", "returns:Returns", returns.rows, facts=JOB)
CLEAN = (PARCELS, TRIAGE, SUMS, ORDERS, RETURNS)
