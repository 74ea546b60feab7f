"""Makes a bill of materials for a lock from the metadata of its packages, without installing them.

pip reads the metadata that the package index keeps beside each wheel. cyclonedx-py makes the bill from an
environment that contains only this metadata. So a lock of gigabytes takes only seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headway_audit.locks import REQUIREMENTS, AuditError, Pin, normal

FIELDS: Final = {
    "metadata_version": "Metadata-Version",
    "name": "Name",
    "version": "Version",
    "summary": "Summary",
    "license": "License",
    "license_expression": "License-Expression",
    "classifier": "Classifier",
    "requires_dist": "Requires-Dist",
    "project_url": "Project-URL",
    "home_page": "Home-page",
}
"""Fields of a package's metadata that a bill contains, as pip's name -> METADATA's name. A bill omits
others."""


def bill(packages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The CycloneDX document of `packages`, which are given by their metadata.

    Raises:
        AuditError: cyclonedx-py fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        venv.create(environment, with_pip=False)
        (site,) = environment.glob("lib/*/site-packages")
        for each in packages:
            home = site / f"{normal(each['name']).replace('-', '_')}-{each['version']}.dist-info"
            home.mkdir()
            (home / "METADATA").write_text(headers(each), encoding="utf-8")
        target = Path(folder) / "bill.json"
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        run([*command, "--output-file", str(target), str(environment)])
        document: dict[str, Any] = json.loads(target.read_text())
    return document


def headers(each: Mapping[str, Any]) -> str:
    """The text of a package's METADATA file, from its metadata in pip's report."""
    lines = []
    for field, name in FIELDS.items():
        value = each.get(field, [])
        for text in value if isinstance(value, list) else [value]:
            lines.append(f"{name}: " + "\n        ".join(str(text).splitlines()))
    return "\n".join(lines) + "\n"


def metadata(pins: Mapping[str, Pin], sources: Sequence[str]) -> list[Mapping[str, Any]]:
    """The metadata of every package of a lock.

    For wheels, pip gets no hashes: otherwise it would download every wheel to check it. `compared` checks the
    hashes instead. Packages in `sources` have no wheel, so pip builds them. It gets their hashes and checks
    them before the build.

    Raises:
        AuditError: the index is unreachable, or has other files than the lock.
    """
    built = {normal(name) for name in sources} & set(pins)
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder) / "wheels.txt"
        wheels.write_text(
            "".join(f"{name}=={pin.version}\n" for name, pin in pins.items() if name not in built)
        )
        found = list(compared(report(wheels, "--only-binary", ":all:"), pins))
        if built:
            some = Path(folder) / "sources.txt"
            some.write_text("\n".join(pins[name].lines for name in sorted(built)))
            options = ("--require-hashes", "--no-binary", ",".join(sorted(built)))
            found += compared(report(some, *options), pins)
    if missing := set(pins) - {normal(each["name"]) for each in found}:
        raise AuditError(f"pip says nothing of {', '.join(sorted(missing))}")
    return found


def compared(document: Mapping[str, Any], pins: Mapping[str, Pin]) -> Iterator[Mapping[str, Any]]:
    """The metadata of each package in pip's report, after a check of its hash.

    Raises:
        AuditError: a file is not in the lock.
    """
    for each in document["install"]:
        name = normal(each["metadata"]["name"])
        seen = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if name not in pins or seen not in pins[name].hashes:
            raise AuditError(f"the index has another file of {name} than the lock: run `make lock`")
        yield each["metadata"]


def report(requirements: Path, *options: str) -> dict[str, Any]:
    """pip's report of the packages that it would install."""
    target = requirements.with_suffix(".json")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
    ]
    run([*command, *options, "--report", str(target), "--requirement", str(requirements)])
    document: dict[str, Any] = json.loads(target.read_text())
    return document


def run(command: Sequence[str]) -> None:
    # Building DeepSpeed's metadata needs none of its kernels, so do not compile them.
    added = {"DS_BUILD_OPS": "0", "PIP_BUILD_CONSTRAINT": str(REQUIREMENTS / "build.txt")}
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, env={**clean, **added}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AuditError("\n".join((done.stderr or done.stdout).strip().splitlines()[-5:]))
