"""The cluster's own control group: every process it starts is inside, pods included.

So `down` finds processes whose record was lost in a crash, and never touches one that
is not the cluster's. Works on v1 and v2.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError


def hierarchies() -> dict[str, Path]:
    """Mount points by controller; the one of cgroup v2 under the name `unified`."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        kind, _, options = after.split(" ", 2)
        mount_point = Path(before.split(" ")[4])
        if kind == "cgroup2":
            found["unified"] = mount_point
        elif kind == "cgroup":
            controllers = [word for word in options.split(",") if word not in ("rw", "ro")]
            found.update(dict.fromkeys(controllers, mount_point))
    return found


@dataclass(frozen=True)
class ControlGroup:
    """The group `name` at the top of every hierarchy; daemons are in its part `system`."""

    name: str

    def create(self) -> None:
        """Make the group in every hierarchy, as the kubelet wants of its root group."""
        for mount_point in set(hierarchies().values()):
            try:
                (mount_point / self.name).mkdir(exist_ok=True)
            except OSError as refused:
                raise ClusterError(
                    f"cannot create a control group in {mount_point}: {refused.strerror}",
                    fix="run as root where /sys/fs/cgroup is writable",
                ) from refused
        for group in self._joined():
            (group / "system").mkdir(exist_ok=True)
        self._delegate_v2()

    def join(self) -> None:
        """Move the calling process into the group's part for daemons."""
        for group in self._joined():
            (group / "system" / "cgroup.procs").write_text("0")

    def cpu_seconds(self) -> float:
        """Processor time that everything in the group has used: daemons, runtime and pods."""
        mounts = hierarchies()
        if "cpuacct" in mounts:
            return int((mounts["cpuacct"] / self.name / "cpuacct.usage").read_text()) / 1e9
        usage = (mounts["unified"] / self.name / "cpu.stat").read_text().split()
        return int(usage[usage.index("usage_usec") + 1]) / 1e6

    def members(self, part: str = "") -> set[int]:
        """Process ids in the group or in `part` of it ("system", "kubepods")."""
        found: set[int] = set()
        for group in groups_below(self._tracking() / part):
            try:
                found.update(int(word) for word in (group / "cgroup.procs").read_text().split())
            except OSError:
                continue  # the group went away while it was being read
        return found

    def kill_members(self, part: str = "", *, deadline_s: float = 30) -> None:
        """SIGKILL every process in the group until none is left."""
        ends = time.monotonic() + deadline_s
        while left := self.members(part):
            if time.monotonic() > ends:
                raise ClusterError(
                    f"processes {sorted(left)} in control group {self.name}/{part} cannot be killed",
                    fix="they hang in the kernel (`cat /proc/PID/stack`); reboot the machine",
                )
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)

    def remove(self, *, deadline_s: float = 10) -> None:
        """Delete the group everywhere; its processes must be gone."""
        for mount_point in set(hierarchies().values()):
            for group in sorted(groups_below(mount_point / self.name), reverse=True):
                _remove_one(group, deadline_s=deadline_s)

    def _tracking(self) -> Path:
        """The hierarchy that decides which processes belong to the cluster."""
        mounts = hierarchies()
        for name in ("pids", "unified"):
            if name in mounts:
                return mounts[name] / self.name
        raise ClusterError(
            "no control group hierarchy with the pids controller is mounted",
            fix="run on a host (or in a privileged container) with /sys/fs/cgroup mounted",
        )

    def _joined(self) -> list[Path]:
        """Where daemons are put: for tracking and, on v1, so that their CPU time is counted."""
        mounts = hierarchies()
        counting = [mounts["cpuacct"] / self.name] if "cpuacct" in mounts else []
        return [self._tracking(), *counting]

    def _delegate_v2(self) -> None:
        mounts = hierarchies()
        if "pids" in mounts:
            return
        for group in (mounts["unified"], mounts["unified"] / self.name):
            wanted = (group / "cgroup.controllers").read_text().split()
            switch = group / "cgroup.subtree_control"
            switch.write_text(" ".join(f"+{name}" for name in wanted))


def groups_below(top: Path) -> Iterator[Path]:
    """`top` and every group in it, without groups that disappear meanwhile.

    The kubelet removes pods' groups at any time, and `Path.rglob` fails when a folder disappears.
    """
    for folder, _, _ in os.walk(top):
        yield Path(folder)


def _remove_one(group: Path, *, deadline_s: float) -> None:
    ends = time.monotonic() + deadline_s
    while group.exists():
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as busy:
            # A killed process leaves its group only once it is reaped.
            if time.monotonic() > ends:
                raise ClusterError(
                    f"control group {group} cannot be removed: {busy.strerror}",
                    fix=f"see which processes are in {group}/cgroup.procs",
                ) from busy
            time.sleep(0.05)
