"""Which adapter versions the engine holds, and which may go: pure bookkeeping.

A version has three states, and its folder is deleted only at the end of the second. *Loaded*: new requests
may name it. *Draining*: it is unloaded, so vLLM refuses new requests, but one in flight may make the worker
read the folder again. Then it is gone. If a folder went while its adapter was registered, the engine would
die.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from headway_api.records import PolicyVersion


@dataclass(frozen=True)
class Retirement:
    """What to do to the engine and the disk, in this order."""

    unload: tuple[PolicyVersion, ...] = ()
    delete: tuple[PolicyVersion, ...] = ()


@dataclass(frozen=True)
class Adapters:
    """Versions held, in the order in which they were loaded."""

    loaded: tuple[PolicyVersion, ...] = ()
    draining: tuple[PolicyVersion, ...] = ()

    def holds(self, version: PolicyVersion) -> bool:
        """Whether a request may name it."""
        return version in self.loaded

    def added(self, version: PolicyVersion) -> Adapters:
        """The state after `version` was loaded (or asked for again, which makes it the newest)."""
        rest = tuple(v for v in self.loaded if v != version)
        return replace(
            self, loaded=(*rest, version), draining=tuple(v for v in self.draining if v != version)
        )

    def dropped(self, version: PolicyVersion) -> Adapters:
        """The state after `version` was unloaded, whether or not it was loaded."""
        rest = self.added(version)
        return replace(rest, loaded=rest.loaded[:-1], draining=(*rest.draining, version))

    def retire(self, in_use: Collection[PolicyVersion], keep: int) -> tuple[Adapters, Retirement]:
        """Release the versions that nobody uses beyond the newest `keep`.

        A version unloaded now is deleted by the next call at the earliest. A request accepted just before the
        unload is not yet in any measure of use.
        """
        surplus = self.loaded[: max(0, len(self.loaded) - keep)]
        unload = tuple(v for v in surplus if v not in in_use)
        delete = tuple(v for v in self.draining if v not in in_use)
        after = Adapters(
            loaded=tuple(v for v in self.loaded if v not in unload),
            draining=tuple(v for v in self.draining if v not in delete) + unload,
        )
        return after, Retirement(unload=unload, delete=delete)
