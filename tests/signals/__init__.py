"""Recorded series of figures on which the collapse signals' thresholds are chosen and tested.

    circumstances.py   what a run is: its spec, what goes on around it, what changes at which step
    provocations.py    runs that provoke a symptom, and at which step it begins
    clean.py           runs that go as they should
    rig.py             runs one: the product's own episodes, learner and figures, on the demo's tiny model
    record.py          runs what is not recorded yet (`make record-signals`)
    read.py            the recorded series as typed objects

Only `read.py` and `series/` are needed to test signals. Recording needs torch, DeepSpeed and minutes.
"""
