"""Control groups may disappear at any time, because the kubelet removes them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "cluster"))

from headway_cluster.cgroups import groups_below


def test_a_group_that_goes_while_they_are_listed_is_left_out(tmp_path: Path) -> None:
    for name in ("kubepods/pod-a/container", "kubepods/pod-b", "system"):
        (tmp_path / name).mkdir(parents=True)
    found = []
    for group in groups_below(tmp_path):
        found.append(group.relative_to(tmp_path).as_posix())
        if group.name == "kubepods":
            (group / "pod-b").rmdir()
            (group / "pod-a" / "container").rmdir()
            (group / "pod-a").rmdir()
    assert sorted(found) == [".", "kubepods", "system"]


def test_a_missing_group_has_no_groups_below(tmp_path: Path) -> None:
    assert list(groups_below(tmp_path / "gone")) == []
