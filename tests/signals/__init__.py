"""Recorded series of metrics on which the signals' thresholds are chosen and tested.

    circumstances.py   what a run is: its spec, its surroundings, and what changes at which step.
    provocations/      runs that provoke a symptom.
    rules.py           at which step a symptom begins that emerges by itself.
    clean.py           runs that must be clean.
    rig.py             makes runs with the product's episodes, learner and metrics, and the demo's model.
    describe.py        what its metrics are expected to show.
    record.py          makes the runs that are not recorded yet (`make record-signals`).
    series.py read.py  the recorded series as files and as typed objects.
    symptoms.py        whether a provoked symptom shows in the raw metrics.
    labels.py          what symptoms a clean run shows.
    detection.py       the signals' results on the runs.
    known_misses.py    what the signals miss and why, and which runs were replaced.
    page.py            all results as bench/results/signals.md (`make test-signals`).

The series of the split `chosen_on` were recorded before any threshold was chosen. Those of `held_out` have
other seeds and settings, and no threshold was chosen on them. Then four more splits followed. The results
of each split led to changes, and only after these was the next split listed and recorded:

- `held_out`: ScoreDiverged and RewardOneSided were redefined.
- `fresh`: ValidationDiverged and three labels were redefined.
- `unseen`, which has clean runs alone: GroupsUniform and PolicyMismatch were redefined, and a label was
  written.
- `untouched`: EntropyRising, GradientSpiking, the signals of shares of episodes, and those of what an agent
  does too often became more patient. A label was widened.
- `sealed` is the last one.

Every metric has its measured value. Only `read.py` and `series/` are needed to test signals. Recording needs
torch, DeepSpeed and an hour.
"""
