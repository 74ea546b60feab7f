"""Reads and checks the policy of what is allowed, hack/audit/policy.toml."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from headway_audit.locks import AuditError

FILE: Final = Path(__file__).resolve().parents[1] / "policy.toml"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=20)]


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stated(Entry):
    """The licence of a package whose metadata has none, or has one that cannot be read."""

    package: Text
    licence: Text
    """An SPDX expression."""
    source: Reason
    """Where a person can read the licence."""


class Excepted(Entry):
    """Licences that some packages may have although they are not in `allowed`."""

    packages: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Names of packages; `*` at the end matches any ending."""
    licences: Annotated[tuple[Text, ...], Field(min_length=1)]
    reason: Reason


class Known(Entry):
    """A vulnerability that is known and accepted until a day."""

    id: Text
    package: Text
    reason: Reason
    until: date


class Policy(Entry):
    """The whole policy.toml."""

    allowed: Annotated[frozenset[Text], Field(min_length=1)]
    """SPDX ids of the allowed licences."""
    sources: tuple[Text, ...] = ()
    """Packages without a wheel, whose metadata pip must build from source."""
    readings: dict[str, Text] = {}
    """Text in older metadata fields -> the SPDX expression that it means."""
    stated: tuple[Stated, ...] = ()
    excepted: tuple[Excepted, ...] = ()
    known: tuple[Known, ...] = ()


def parse(text: str) -> Policy:
    """The policy in the text of a file.

    Raises:
        AuditError: the text is not TOML, or a field is missing or wrong.
    """
    try:
        return Policy.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise AuditError(f"hack/audit/policy.toml is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise AuditError(f"hack/audit/policy.toml: {field}: {first['msg']}") from error


def load() -> Policy:
    """The repository's policy."""
    return parse(FILE.read_text())
