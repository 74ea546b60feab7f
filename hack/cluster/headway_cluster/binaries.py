"""Builds the cluster's programs from Go modules, once for each version of their sources."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .layout import SOURCE, Layout
from .locks import alone
from .shell import run
from .steps import step
from .toolchain import GO_MODULE, go_command

GITOPS_MODULE = SOURCE.parent / "gitops"
KUBERNETES_PARTS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
BUILD_TIMEOUT_S = 3600
COMPILER_FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-l -dwarf=false")
"""Compiler flags that make a first build faster.

Without inlining it takes a quarter less CPU time. The programs mostly wait, so slower code does not matter.
Without debug information, which the linker would drop anyway, it takes another tenth less.
"""


@dataclass(frozen=True)
class Program:
    """A program built from a Go package, and further names that link to it."""

    package: str
    links: tuple[str, ...] = ()
    version: str | None = None
    """Version of the program's own module; None if the program is built as part of `module`."""
    module: Path = GO_MODULE
    """Folder of the Go module in this repository that builds the program."""

    @property
    def name(self) -> str:
        return self.package.rpartition("/")[2]


DNS = Program("./cmd/headway-dns")
PAUSE = Program("./cmd/headway-pause")
CLUSTER_PROGRAMS = (
    Program("./cmd/headway-kube", links=KUBERNETES_PARTS),
    DNS,
    PAUSE,
    Program("./cmd/headway-netpol"),
    Program("./cmd/headway-netpol-cni"),
)
TOOLS = (
    Program("helm.sh/helm/v4/cmd/helm"),
    Program("github.com/versity/versitygw/cmd/versitygw"),
)
KWOK = Program("sigs.k8s.io/kwok/cmd/kwok", version="v0.8.0")
KIND = Program("sigs.k8s.io/kind", version="v0.33.0")
"""The first version whose network plugin applies egress policies to a pod's traffic to its own node."""

VERDICTS = Program("./cmd/headway-verdicts", module=GITOPS_MODULE)
"""Prints how GitOps tools judge an object. It has its own Go module, so that its dependencies stay separate
from those of the cluster's programs."""


def kubernetes_version() -> str:
    """The Kubernetes release that go.mod requires, such as `v1.36.2`."""
    line = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", _read("go.mod"), re.MULTILINE)
    assert line, "go.mod does not require k8s.io/kubernetes"
    return line[1]


def folder(layout: Layout) -> Path:
    """The folder for programs built from the present go.mod, go.sum and flags. It may not exist yet."""
    made_from = _read("go.mod") + _read("go.sum") + " ".join(COMPILER_FLAGS)
    digest = hashlib.sha256(made_from.encode()).hexdigest()
    return layout.cache / "bin" / f"{kubernetes_version()}-{platform.machine()}-{digest[:12]}"


def sources_digest(program: Program) -> str:
    """Digest of a program's sources in this repository. The name of `folder` covers the module versions."""
    digest = hashlib.sha256(f"{program.package}@{program.version}".encode())
    if program.package.startswith("./"):
        own = sorted((program.module / program.package).glob("*.go"))
        shared = sorted((program.module / "internal").rglob("*.go"))
        uses_shared = any("/internal/" in source.read_text() for source in own)
        other = program.module != GO_MODULE
        pins = [program.module / name for name in ("go.mod", "go.sum")] if other else []
        for source in own + (shared if uses_shared else []) + pins:
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def build(layout: Layout, programs: tuple[Program, ...]) -> Path:
    """Build the `programs` that are not cached yet, and return the folder with all programs."""
    target = folder(layout)
    target.mkdir(parents=True, exist_ok=True)
    if _missing(programs, target):
        with alone(layout, "toolchain"):
            go = go_command(layout)
        with alone(layout, "building-programs"):
            for together in _by_command(_missing(programs, target)):  # another process may have built some
                with step(f"building {', '.join(program.name for program in together)}"):
                    _build_together(go, together, target)
    return target


def _missing(programs: tuple[Program, ...], target: Path) -> list[Program]:
    return [program for program in programs if not _is_built(program, target)]


def _by_command(programs: list[Program]) -> list[list[Program]]:
    """Group programs that one `go` command can build. It links one program while it compiles the next."""
    groups: dict[tuple[Path, str], list[Program]] = {}
    for program in programs:
        apart = program.package if program.version else ""
        groups.setdefault((program.module, apart), []).append(program)
    return list(groups.values())


def _is_built(program: Program, target: Path) -> bool:
    stamp = _stamp(program, target)
    return stamp.exists() and stamp.read_text() == sources_digest(program)


def _stamp(program: Program, target: Path) -> Path:
    return target / f".{program.name}.sources"


def _build_together(go: Path, programs: list[Program], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target, prefix=".building-") as unfinished:
        flags = [*COMPILER_FLAGS, "-ldflags", _linker_flags()]
        if version := programs[0].version:
            command = ["install", *flags, f"{programs[0].package}@{version}"]
        else:
            command = ["build", *flags, "-o", f"{unfinished}/", *(program.package for program in programs)]
        run(
            [go, *command],
            cwd=programs[0].module,
            env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOBIN": unfinished},
            timeout_s=BUILD_TIMEOUT_S,
            fix="the Go module proxy must be reachable for a first build",
        )
        for program in programs:
            _install(program, Path(unfinished), target)


def _install(program: Program, unfinished: Path, target: Path) -> None:
    (unfinished / program.name).replace(target / program.name)
    for link in program.links:
        (target / link).unlink(missing_ok=True)
        (target / link).symlink_to(program.name)
    _stamp(program, target).write_text(sources_digest(program))


def _linker_flags() -> str:
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    package = "k8s.io/component-base/version"
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    stamps = " ".join(f"-X {package}.{name}={value}" for name, value in values.items())
    return f"-s -w {stamps}"


def _read(name: str) -> str:
    return (GO_MODULE / name).read_text()
