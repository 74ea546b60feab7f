"""How much of the differences between rewards a number that the environment reports explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway_api.records import GroupRecord

LEAST = 3
"""The fewest episodes of a group that must report a number. With only two episodes, any number correlates
fully with the reward."""


def explained_variance(groups: Sequence[GroupRecord]) -> dict[str, float]:
    """For each reported number: the square of its correlation with the reward within groups, over all groups.

    Advantages compare episodes of one group, so only differences within groups count. A number is left out if
    the number or the reward never differs within a group.
    """
    found = {}
    for name in sorted({name for group in groups for e in group.scored for name in e.metrics}):
        pairs = [_centred(group, name) for group in groups]
        values, rewards = (np.concatenate([pair[at] for pair in pairs]) for at in (0, 1))
        spread = float(np.sqrt((values @ values) * (rewards @ rewards)))
        if spread > 0:
            found[name] = min(1.0, float(values @ rewards / spread) ** 2)
    return found


def _centred(group: GroupRecord, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The number and the reward of a group's episodes that report the number, each minus its mean."""
    known = [(e.metrics[name], e.reward) for e in group.scored if name in e.metrics and e.reward is not None]
    if len(known) < LEAST:
        return np.empty(0), np.empty(0)
    pairs = np.array(known, dtype=float)
    pairs -= pairs.mean(axis=0)
    return pairs[:, 0], pairs[:, 1]
