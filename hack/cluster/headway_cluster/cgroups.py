"""Manages the cluster's control group, which contains every process that the cluster starts, pods included.

So `down` finds processes whose records were lost in a crash, and never touches a process of anything else. It
works with cgroup v1 and v2.
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
    """Mount points of cgroup hierarchies by controller. The mount point of cgroup v2 is called `unified`."""
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
    """The group `name` at the top of every hierarchy. Daemons are in its child group `system`."""

    name: str

    def create(self) -> None:
        """Create the group in every hierarchy, which the kubelet requires for its root group."""
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
        """Move the calling process into the child group for daemons."""
        for group in self._joined():
            (group / "system" / "cgroup.procs").write_text("0")

    def cpu_seconds(self) -> float:
        """CPU seconds that all processes of the group have used: daemons, container runtime and pods."""
        mounts = hierarchies()
        if "cpuacct" in mounts:
            return int((mounts["cpuacct"] / self.name / "cpuacct.usage").read_text()) / 1e9
        usage = (mounts["unified"] / self.name / "cpu.stat").read_text().split()
        return int(usage[usage.index("usage_usec") + 1]) / 1e6

    def members(self, part: str = "") -> set[int]:
        """Process ids in the group, or in its child group `part` ("system", "kubepods")."""
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
        """Delete the group in every hierarchy. Its processes must have ended."""
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
        """The groups that daemons join: the tracking one and, with cgroup v1, the one that counts CPU
        time."""
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
    """`top` and every group below it, except groups that disappear during the walk.

    The kubelet removes pods' groups at any time, and `Path.rglob` fails if a folder disappears.
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
