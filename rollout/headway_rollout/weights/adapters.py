"""Which adapter versions the engine holds, and which may be released: pure bookkeeping.

A version is first *loaded*: new requests may name it. Later it is *draining*: it is unloaded, so vLLM refuses
new requests for it. A request in flight may still make the worker read the version's folder again. So the
folder is deleted only at the end of draining. If a folder vanished while its adapter was registered, the
engine would die.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from headway_api.records import PolicyVersion


@dataclass(frozen=True)
class Retirement:
    """Versions to unload from the engine, and then versions whose folders to delete."""

    unload: tuple[PolicyVersion, ...] = ()
    delete: tuple[PolicyVersion, ...] = ()


@dataclass(frozen=True)
class Adapters:
    """The adapter versions that the engine holds, in the order in which they were loaded."""

    loaded: tuple[PolicyVersion, ...] = ()
    draining: tuple[PolicyVersion, ...] = ()

    def holds(self, version: PolicyVersion) -> bool:
        """Whether `version` is loaded, so that new requests may name it."""
        return version in self.loaded

    def added(self, version: PolicyVersion) -> Adapters:
        """The state after `version` was loaded. A version that is loaded already becomes the newest."""
        rest = tuple(v for v in self.loaded if v != version)
        return replace(
            self, loaded=(*rest, version), draining=tuple(v for v in self.draining if v != version)
        )

    def dropped(self, version: PolicyVersion) -> Adapters:
        """The state after `version` was unloaded: it is draining, even if it was not loaded before."""
        rest = self.added(version)
        return replace(rest, loaded=rest.loaded[:-1], draining=(*rest.draining, version))

    def retire(self, in_use: Collection[PolicyVersion], keep: int) -> tuple[Adapters, Retirement]:
        """Release versions that no request uses, except for the newest `keep`.

        Returns the state afterwards, and the versions to unload and to delete. A version that one call
        unloads is deleted by the next call at the earliest: `in_use` may lack a request that vLLM accepted
        just before.
        """
        surplus = self.loaded[: max(0, len(self.loaded) - keep)]
        unload = tuple(v for v in surplus if v not in in_use)
        delete = tuple(v for v in self.draining if v not in in_use)
        after = Adapters(
            loaded=tuple(v for v in self.loaded if v not in unload),
            draining=tuple(v for v in self.draining if v not in delete) + unload,
        )
        return after, Retirement(unload=unload, delete=delete)
