"""The group of all commands. It rewords errors of Typer and pydantic about wrong options."""

from __future__ import annotations

import re
from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from headway_api import mistake_words

CHOICE: Final = re.compile(r"^(?:Value error, )?'(.*)' is not one of (.*?)\.?$", re.DOTALL)
"""Typer's message about a value that is not one of an option's choices."""


class CommandGroup(TyperGroup):
    """A group of commands and of further groups, such as `headway data`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` names, and reword its error about a wrong option."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = words(error.message, error.__cause__)
            raise


def words(message: str, cause: BaseException | None) -> str:
    """What is wrong with an option, and what to write instead.

    Args:
        message: Typer's message.
        cause: the exception from which Typer took the message.
    """
    if (found := CHOICE.match(message)) is not None:
        *others, last = re.findall(r"'([^']*)'", found[2])
        choices = f"{', '.join(others)} or {last}" if others else last
        return f"{mistake_words.shown(found[1])}: write {choices}"
    if isinstance(cause, ValidationError):
        first = cause.errors(include_url=False)[0]
        return f"{mistake_words.shown(first['input'])}: {mistake_words.remedy(first)}"
    return message.removeprefix(mistake_words.OWN)
