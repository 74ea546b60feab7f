"""Tables of named functions, one for each axis of the objective, such as the surrogate or the reduction.

A user's own modules may add functions.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Generic, TypeVar

from headway_api import names
from headway_api.exits import JobError

Entry = TypeVar("Entry")
PLUGINS_FIELD: Final = "spec.algorithm.plugins"
PLUGINS_DIR: Final = "/plugins"
"""Folder where a job may mount its modules. It is last in `sys.path`, so they hide no other module."""


class Table(Generic[Entry]):
    """The functions that a spec may name on one axis of the objective."""

    def __init__(self, field: str, *, reserved: Collection[str] = ()) -> None:
        """`field` is the path of the spec's field that names an entry. No entry may have a `reserved`
        name."""
        self.field = field
        self._reserved = reserved
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, entry: Entry) -> None:
        """Register a function under a name.

        Raises:
            ValueError: the name is taken. A plugin must not replace the documented function of that name.
        """
        if name in self._entries or name in self._reserved:
            raise ValueError(f"a {self.field} is already called {name!r}; choose another name")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> Entry:
        """The entry of a name.

        Raises:
            JobError: `ObjectiveUnknown`, with the field and its possible values.
        """
        if name not in self._entries:
            raise JobError(
                "ObjectiveUnknown",
                f"nothing registered {name!r}; use one of {', '.join(self)}, or register it in a module of "
                f"{PLUGINS_FIELD}",
                field=self.field,
            )
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


def load_plugins(modules: Sequence[str]) -> None:
    """Import a user's modules, which register their functions.

    Raises:
        JobError: `PluginNotImportable`: a module is not on the path, or raises an exception.
    """
    folder = os.environ.get(names.ENV_PLUGINS, PLUGINS_DIR)
    if modules and folder not in sys.path:
        sys.path.append(folder)
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a user's module raises
            raise JobError(
                "PluginNotImportable",
                f"import {module} raised {type(error).__name__}: {error}; mount the module at "
                f"{PLUGINS_DIR} with spec.learner.podTemplate or install it in the image, and correct the "
                "error",
                field=PLUGINS_FIELD,
            ) from error
