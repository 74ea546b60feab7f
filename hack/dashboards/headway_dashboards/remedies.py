"""Panels that show the changes by remedies in a running job, and the settings in force now."""

from __future__ import annotations

from typing import Any, Final, get_args

from headway_api.status import RemedyState
from headway_dashboards.board import Mark
from headway_dashboards.panels import Query, curves, table
from headway_dashboards.promql import JOB, RATE, largest, of, total, value

WITHOUT_EFFECT: Final = ("Undone", "Refused")
IN_FORCE: Final = "|".join(state for state in get_args(RemedyState) if state not in WITHOUT_EFFECT)
"""States of remedies whose changes are in force, as a regular expression."""


def panels() -> list[Any]:
    """The panels about remedies, for the health section."""
    standing = value("remedy/changes", f'{JOB}, state=~"{IN_FORCE}"')
    return [
        curves(
            "Changes by remedies",
            "How many have come to each state; docs/remedies.md says what these mean. "
            "Blue marks stand where one is taken, or its state changes.",
            [Query(value("remedy/changes"), "{{job_name}} {{state}}")],
            span=12,
            lowest=0,
        ),
        table(
            "In force now",
            "Of the last batch that was trained, and how many changes stand. "
            "All that is in force is in status.algorithm.",
            [
                Query(of("job/info"), ""),
                Query(of("training/learning_rate"), "learning rate"),
                Query(of("training/num_groups"), "groups of a batch"),
                Query(of("training/num_trajectories"), "episodes of a batch"),
                Query(total(standing), "changes that stand"),
            ],
            keys=["job_name"],
            more=["loss"],
            span=12,
            height=8,
        ),
    ]


def mark() -> Mark:
    """A mark over the curves at each time when the number of remedies in a state grows."""
    more = largest(f"delta({of('remedy/changes')}[{RATE}])", "state")
    return Mark("Remedies", f"{more} > 0", "blue", "Remedy: {{state}}")
