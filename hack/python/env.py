"""Sets up the Python environment of a checkout: from hashed locks, in a folder outside the repository.

    env.py venv         create the environment, unless it exists
    env.py path         print its folder
                        (both with --oracles: the environment that also has verl and trl)
    env.py guest NAME   create a guest's environment and print its python
    env.py tool NAME    create the environment of one of this repository's tools and print its python
    env.py lock         resolve pyproject.toml again into requirements/*.txt (--upgrade takes newer versions;
                        --guest NAME or --tool NAME resolves only that lock)

A guest is another project's program that the tests run as its users do: an agent, or a library to compare
with. It has its own environment without this repository, so that neither restricts the other's versions.

The interpreter is Debian's own /usr/bin/python3, and not the first one on PATH. The base image has the same
interpreter at the same path. So a pod on this machine can mount the environment read-only and run it. This
file uses only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
CACHE = Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway")
PYTHON = os.environ.get("HEADWAY_PYTHON", "/usr/bin/python3")

LOCKS: dict[str, tuple[str, ...]] = {
    "operator": ("operator", "broker"),
    "coordinator": ("coordinator",),
    "rollout-cpu": ("rollout", "rollout-cpu"),
    "trainer": ("trainer",),
    "cli": ("cli",),
    "dev": ("dev",),
}
ALL = tuple(sorted({extra for extras in LOCKS.values() for extra in extras}))
NO_TWINS = ("--excludes", "requirements/twins.txt")
CPU = ("--overrides", "requirements/overrides.txt", "--excludes", "requirements/excludes.txt", *NO_TWINS)
GUESTS: dict[str, tuple[str, ...]] = {
    "agent-framework": (),
    "anthropic": (),
    "browser": (),
    "claude-code": (),
    "langchain": (),
    "litellm": (),
    "mistral": (),
    "openai": (),
    "pydantic-ai": (),
    "sagemaker": (),
    "schemathesis": (),
    "smolagents": (),
    "strands": (),
    "suite": ("-c", "requirements/all.txt"),
    # Tests only read files of these packages, so their dependencies are not needed.
    "templates": ("--no-deps",),
    # torch and its dependencies take gigabytes, so use the versions that are installed already.
    "tinker": (
        *("-c", "requirements/all.txt", "--excludes", "requirements/excludes.txt"),
        *("--excludes", "requirements/guests/tinker-excludes.txt"),
    ),
}
"""Guest's name -> further arguments for resolving its requirements/guests/NAME.in."""
FILES = ("wheel.cmake=false", "wheel.packages=vendor/llama.cpp/models")
INSTALLS: dict[str, tuple[str, ...]] = {
    # Install only the templates and vocabularies of this package's source, and compile nothing.
    "templates": tuple(
        word for setting in FILES for word in ("--config-settings-package", f"llama-cpp-python:{setting}")
    ),
}
"""Guest's name -> further options of its installation."""


TOOLS = ("audit", "docs")
"""Programs that examine this repository from an environment of their own; see requirements/NAME.in."""


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def say(text: str) -> None:
    print(f"[python] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.1f} s")


def run(command: Sequence[str | Path], **env: str) -> None:
    """Run a command in the repository's root. Its output goes to stderr, so that stdout has only results."""
    words = [str(word) for word in command]
    # Remove a machine's own wheel folder: it would get into the locks, and two machines would resolve
    # differently.
    clean = {
        k: v for k, v in os.environ.items() if k not in ("PIP_FIND_LINKS", "UV_FIND_LINKS", "VIRTUAL_ENV")
    }
    done = subprocess.run(words, cwd=ROOT, env={**clean, **env}, stdout=sys.stderr, check=False)
    if done.returncode:
        raise SetupError(f"failed ({done.returncode}): {shlex.join(words)}")


def require_venv_module() -> None:
    """Install Debian's python3-venv if it is missing.

    Raises:
        SetupError: it is missing, and this process cannot install it.
    """
    if (
        subprocess.run([PYTHON, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode
        == 0
    ):
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise SetupError(f"{PYTHON} lacks the venv module; as root: apt-get install -y python3 python3-venv")
    with step("apt-get install python3-venv"):
        run(["apt-get", "-qq", "update"])
        run(["apt-get", "-qq", "install", "-y", "python3", "python3-venv"], DEBIAN_FRONTEND="noninteractive")


def bootstrap_uv() -> Path:
    """Install the pinned uv into a small environment of its own, and return the path of uv."""
    lock = REQUIREMENTS / "bootstrap.txt"
    home = CACHE / f"uv-{digest(lock)}"
    uv = home / "bin" / "uv"
    if not (home / ".complete").exists():
        require_venv_module()
        shutil.rmtree(home, ignore_errors=True)
        with step("uv"):
            run([PYTHON, "-m", "venv", home])
            run([home / "bin" / "python", "-m", "pip", "-q", "install", "--require-hashes", "-r", lock])
        (home / ".complete").touch()
    return uv


def digest(*files: Path, salt: str = "") -> str:
    state = hashlib.sha256(salt.encode())
    for file in files:
        state.update(file.read_bytes())
    return state.hexdigest()[:12]


@dataclass(frozen=True)
class Environment:
    """An environment: its locks, and with `ours` also this checkout as an editable install."""

    name: str
    locks: tuple[Path, ...]
    ours: bool
    options: tuple[str, ...] = ()
    """Further options of the installation."""

    @property
    def folder(self) -> Path:
        """Folder of the environment. It depends on the locks, and with `ours` also on the checkout's path."""
        return CACHE / f"{self.name}-{digest(*self.locks, salt=f'{PYTHON}:{ROOT}' if self.ours else PYTHON)}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


def checkout(oracles: bool) -> Environment:
    """The environment in which everything in this repository runs, or with `oracles` the one with verl and
    trl."""
    files = tuple(REQUIREMENTS / f"{name}.txt" for name in ("all", *(["oracles"] if oracles else [])))
    return Environment("oracles" if oracles else "venv", files, ours=True)


def guest(name: str) -> Environment:
    lock = REQUIREMENTS / "guests" / f"{name}.txt"
    return Environment(f"guest-{name}", (lock,), ours=False, options=INSTALLS.get(name, ()))


def tool(name: str) -> Environment:
    return Environment(f"tool-{name}", (REQUIREMENTS / f"{name}.txt",), ours=False)


def uv_options() -> dict[str, str]:
    return {"UV_CACHE_DIR": str(CACHE / "uv-cache"), "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}


def create(environment: Environment) -> None:
    stamp = environment.folder / ".complete"
    wanted = digest(*([ROOT / "pyproject.toml"] if environment.ours else []), REQUIREMENTS / "build.txt")
    if stamp.exists() and stamp.read_text() == wanted:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("[python] waiting for another set-up on this machine ...", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        with step(f"environment {environment.folder}"):
            fill(environment)
        stamp.write_text(wanted)


def fill(environment: Environment) -> None:
    uv, venv = bootstrap_uv(), environment.folder
    if not environment.python.exists():
        run([uv, "venv", "-q", "--relocatable", "--python", PYTHON, venv], **uv_options())
    install: list[str | Path] = [uv, "pip", "install", "-q", "--python", environment.python, "--no-deps"]
    install += ["--compile-bytecode", "--build-constraints", REQUIREMENTS / "build.txt"]
    done = venv / ".packages"
    if not done.exists():
        files = [word for file in environment.locks for word in ("-r", file)]
        with step("locked packages" + (" (about 6 GB)" if environment.ours else "")):
            # Build no DeepSpeed kernels at installation. They are built at their first use.
            run(
                [*install, *environment.options, "--require-hashes", *files], DS_BUILD_OPS="0", **uv_options()
            )
        done.touch()
    if environment.ours:
        with step("headway, editable"):
            run([*install, "--editable", ROOT], **uv_options())


def inspect_model_class(environment: Environment) -> None:
    """Fill vLLM's cache of model classes on this machine, once for each lock."""
    folder = CACHE / "vllm"
    done = folder / f".{digest(*environment.locks)}"
    if not done.exists():
        with step("model class, inspected by vLLM"):
            run([environment.python, Path(__file__).with_name("model_classes.py"), folder])
        done.touch()


def lock(upgrade: bool, only: str | None, alone: str | None = None) -> None:
    """Resolve all extras together first, then each image's part of them, so that all have the same versions.

    With `only`, resolve only that guest. With `alone`, resolve only that tool. Guests and tools are resolved
    separately.
    """
    uv = bootstrap_uv()
    options = ["--python", PYTHON, "--generate-hashes", "--no-header", "--no-emit-index-url", "-q"]
    options += ["--upgrade"] if upgrade else []

    def resolve(name: str, *arguments: str) -> None:
        with step(f"requirements/{name}.txt"):
            target = f"requirements/{name}.txt"
            run([uv, "pip", "compile", *options, *arguments, "-o", target], DS_BUILD_OPS="0", **uv_options())

    if alone:
        resolve(alone, f"requirements/{alone}.in")
        return
    if only:
        resolve(f"guests/{only}", f"requirements/guests/{only}.in", *GUESTS[only])
        return
    resolve("all", "pyproject.toml", *CPU, *(word for extra in ALL for word in ("--extra", extra)))
    for name, extras in LOCKS.items():
        chosen = (word for extra in extras for word in ("--extra", extra))
        resolve(name, "pyproject.toml", *CPU, "-c", "requirements/all.txt", *chosen)
    # vLLM's GPU build pins its own versions. The overrides and exclusions are only for the CPU build.
    resolve("rollout-gpu", "pyproject.toml", *NO_TWINS, "--extra", "rollout", "--extra", "rollout-gpu")
    # Override the version bounds of verl and trl, which are older. The parts that tests import work with
    # ours.
    extra = ("--overrides", "requirements/all.txt", "--excludes", "requirements/oracles-excludes.txt")
    resolve("oracles", "requirements/oracles.in", *CPU[2:], *extra)
    keep_additions(REQUIREMENTS / "oracles.txt", REQUIREMENTS / "all.txt")
    for name, arguments in GUESTS.items():
        resolve(f"guests/{name}", f"requirements/guests/{name}.in", *arguments)
    for name in ("bootstrap", "build", *TOOLS):
        resolve(name, f"requirements/{name}.in")


def keep_additions(target: Path, known: Path) -> None:
    """Remove from the lock `target` the packages that the lock `known` has. Both are installed together."""
    have = set(entries(known.read_text()))
    target.write_text(
        "".join(f"{text}\n" for name, text in entries(target.read_text()).items() if name not in have)
    )


def entries(lock: str) -> dict[str, str]:
    """The packages of a lock: `name==version` -> the package's lines, hashes and comments included."""
    found: dict[str, str] = {}
    current = ""
    for line in lock.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            current = line.split()[0]
            found[current] = line
        elif current:
            found[current] += f"\n{line}"
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("venv", "path"):
        commands.add_parser(name).add_argument(
            "--oracles", action="store_true", help="the environment with verl and trl"
        )
    commands.add_parser("guest").add_argument("name", choices=sorted(GUESTS))
    commands.add_parser("tool").add_argument("name", choices=TOOLS)
    locking = commands.add_parser("lock")
    locking.add_argument("--upgrade", action="store_true", help="take newer versions")
    locking.add_argument("--guest", choices=sorted(GUESTS), help="resolve that guest alone")
    locking.add_argument("--tool", choices=TOOLS, help="resolve that tool alone")
    options = parser.parse_args(arguments)
    try:
        if options.command == "venv":
            create(environment := checkout(options.oracles))
            if not options.oracles:
                inspect_model_class(environment)
        elif options.command == "guest":
            create(guest(options.name))
            print(guest(options.name).python)
        elif options.command == "tool":
            create(tool(options.name))
            print(tool(options.name).python)
        elif options.command == "lock":
            lock(options.upgrade, options.guest, options.tool)
        else:
            print(checkout(options.oracles).folder)
    except SetupError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
