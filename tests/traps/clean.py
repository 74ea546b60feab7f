"""The clean tasks: no check has anything to say about them."""

from __future__ import annotations

import sys

from tests.traps.trap import TASKS, Task

sys.path.insert(0, str(TASKS))
import orders
import parcels
import sums
import triage

PARCELS = Task("parcels", "parcels:Parcels", parcels.rows)
TRIAGE = Task("triage", "triage:Triage", triage.rows)
SUMS = Task("sums", "sums:Sums", sums.rows)
ORDERS = Task("orders", "orders:Orders", orders.rows, facts={"contract": orders.contract()})
CLEAN = (PARCELS, TRIAGE, SUMS, ORDERS)
