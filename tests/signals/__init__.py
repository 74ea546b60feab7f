"""Recorded series of metrics on which the signals' thresholds are chosen and tested.

    circumstances.py   what a run is: its spec, what goes on around it, what changes at which step.
    provocations/      runs that provoke a symptom.
    rules.py           at which step a symptom begins that comes of itself.
    clean.py           runs that go as they should.
    rig.py             runs one: the product's own episodes, learner and metrics, on the demo's tiny model.
    describe.py        what is to be expected of its metrics.
    record.py          runs what is not recorded yet (`make record-signals`).
    series.py read.py  the recorded series as files and as typed objects.
    symptoms.py        whether a provoked symptom shows in the raw metrics.
    labels.py          what symptoms a clean run shows.
    detection.py       what the signals make of the runs.
    known_misses.py    what they miss and why, and which runs were replaced.
    page.py            all of it as bench/results/signals.md (`make test-signals`).

The series of the split `chosen_on` were recorded before any threshold was chosen. Those of `held_out` have
other seeds and settings, and no threshold was chosen on them. Then four more splits followed. What a split
showed was looked at and led to changes, and only after these was the next one listed and recorded:

- `held_out`: ScoreDiverged and RewardOneSided were redefined.
- `fresh`: ValidationDiverged and three labels were redefined.
- `unseen`, which has clean runs alone: GroupsUniform and PolicyMismatch were redefined, and a label was
  written.
- `untouched`: EntropyRising, GradientSpiking, the shares of episodes, and what an agent does too much of
  became more patient. A label was widened.
- `sealed` is the last one.

Every metric is as it was measured. Only `read.py` and `series/` are needed to test signals. Recording needs
torch, DeepSpeed and an hour.
"""
