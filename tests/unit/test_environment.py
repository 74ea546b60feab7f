"""The environment is the same on every machine: the order of installation decides nothing."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import distributions
from pathlib import PurePath

NOT_IMPORTED = ("tests", "test", "docs", "examples", "LICENSE", "README.md")


def test_no_two_distributions_install_the_same_module() -> None:
    owners: defaultdict[PurePath, dict[str, str]] = defaultdict(dict)
    for distribution in distributions():
        name = distribution.metadata["Name"]  # each access parses it again
        for file in distribution.files or []:
            if file.hash is not None and file.suffix in (".py", ".so") and file.parts[0] not in NOT_IMPORTED:
                owners[file][name] = file.hash.value
    differ = {str(file): sorted(has) for file, has in owners.items() if len(set(has.values())) > 1}
    assert differ == {}
