"""Runs a benchmark of several sections: measures the chosen ones, keeps earlier results of the others."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.support import machine
from bench.support.report import Row, Section, merge, page

PAGE = "page"
"""Word to write instead of a section's name: measure nothing, and only write the page again."""


@dataclass(frozen=True)
class Benchmark:
    """The sections of a benchmark, and the beginning of its page."""

    name: str
    """Name of the benchmark's files: `bench/results/NAME.md` and `NAME.json`."""
    title: str
    intro: Sequence[str]
    sections: Mapping[str, Callable[[Path], Section]]
    """Section's name -> function that measures it in an empty folder, which is deleted afterwards."""
    described: Callable[[], str] = machine.described
    """Function that describes the machine as text."""
    from_rows: Mapping[str, Callable[[list[Row]], Section]] = field(default_factory=dict)
    """Section's name -> function that makes the section from the rows of its only table.

    It exists if texts and goals follow from these rows alone. If such a section does not run, it is made
    again from the recorded rows.
    """

    def main(self) -> None:
        """The command line: `[--only SECTION,...|page] [--out FOLDER]`."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--only", default=",".join(self.sections), help=f"sections, by comma; or {PAGE}")
        parser.add_argument("--out", type=Path, default=machine.ROOT / "bench" / "results")
        options = parser.parse_args()
        logging.disable(logging.ERROR)
        # Turn SIGTERM into KeyboardInterrupt, so that the benchmark still ends its own processes.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        found: dict[str, Section] = {}
        failed: list[str] = []
        names = [] if options.only == PAGE else [name for name in options.only.split(",") if name]
        if not names:
            self.write(options.out, found)
        for name in names:
            print(f"{name} ...", flush=True)
            measured = {"on": self.described(), "at commit": machine.commit()}
            measured["load before"] = f"{machine.load():.1f}"
            started = time.monotonic()
            try:
                with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
                    found[name] = self.sections[name](Path(folder))
            # If a section fails, measure the others anyway. The command then fails at its end.
            except Exception:
                failed.append(name)
                traceback.print_exc()
                continue
            measured["date"] = time.strftime("%Y-%m-%d", time.gmtime())
            found[name].measured = measured | {"took": f"{time.monotonic() - started:.0f} s"}
            self.write(options.out, found)
        for section in found.values():
            for goal in section.goals:
                print(f"{'met   ' if goal.met else 'MISSED'} {goal.what}: {goal.found}")
        print(f"written: {options.out / f'{self.name}.md'}")
        if failed:
            sys.exit(f"these sections failed, and keep the results they had: {', '.join(failed)}")

    def write(self, folder: Path, found: dict[str, Section]) -> None:
        """Write the page and the JSON, from `found` and the recorded sections that did not run."""
        folder.mkdir(parents=True, exist_ok=True)
        for section in found.values():
            for name, text in section.files.items():
                (folder / name).write_text(text)
        results = merge(folder / f"{self.name}.json", found, list(self.sections))
        for name in results.keys() & self.from_rows.keys() - found.keys():
            results[name] = retold(self.from_rows[name], results[name])
        (folder / f"{self.name}.json").write_text(json.dumps(results, indent=1) + "\n")
        (folder / f"{self.name}.md").write_text(page(self.title, self.intro, results))


def retold(tell: Callable[[list[Row]], Section], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded section with the present texts. Its numbers and circumstances do not change."""
    [table] = recorded["tables"]
    section = tell(table["rows"])
    section.measured = recorded["measured"]
    return section.numbers()
