"""Builds Headway's images. Without Docker or a registry mmdebstrap makes the base and buildah the rest.

    build.py base host operator sandbox     the light ones
    build.py --all                          all, rollout and trainer are gigabytes
    build.py examples/sop-quickstart        an environment's own image, on top of sandbox
    build.py --load host sandbox            and put them into the cluster of this machine

Prints one line an image: its name, a tab, its OCI archive. Archives lie in the cache under the hash of what
they are made of, so a second build takes no time. Where a Docker engine answers it builds, from the same
Dockerfiles.
Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway")
SUITE = "bookworm"
EPOCH = "1767225600"
"""Time stamp of every file in a layer that is newer (2026-01-01): two builds of the same input are alike."""
NEVER_READ = ("doc", "doc-base", "info", "lintian", "locale", "man")
INHERITED = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Prefixes of the settings (any case) that a build takes over from this machine, as a secret."""


class BuildError(Exception):
    """An image cannot be built; the message says what to do."""


@dataclass(frozen=True)
class Image:
    """One image and everything that decides what is in it."""

    name: str
    folder: str
    """Where its Dockerfile is, relative to the repository; the base has none."""
    base: str | None = "base"
    inputs: tuple[str, ...] = ()
    """Files and folders, relative to the repository, beside its own folder."""
    arguments: tuple[str, ...] = ()
    target: str | None = None
    """The stage to stop at."""
    base_argument: str = "BASE"
    own_context: bool = False
    """An environment's image sees its own folder only, as it would anywhere else."""


ROOMS = ("api", "operator", "rollout", "trainer", "sandbox")
PACKAGES = (*(f"{room}/headway_{room}" for room in ROOMS), "images/copy.sh")


def python_image(name: str, lock: str, *arguments: str) -> tuple[Image, Image]:
    """What an image installs, and the image: a change of our own code must not install gigabytes again."""
    folder = f"images/{name}"
    locks = tuple(f"requirements/{file}.txt" for file in ("bootstrap", "build", lock))
    inputs = ("images/install.sh", *locks)
    deps = Image(f"{name}-deps", folder, inputs=inputs, arguments=arguments, target="deps")
    return deps, Image(name, folder, deps.name, PACKAGES, arguments, base_argument="DEPS")


def catalogue(rollout_lock: str) -> dict[str, Image]:
    images = (
        Image("base", "images/base", base=None),
        Image("host", "images/host"),
        Image("sandbox", "images/sandbox", inputs=("sandbox/headway_sandbox",)),
        *python_image("operator", "operator"),
        *python_image("trainer", "trainer"),
        *python_image("rollout", rollout_lock, f"LOCK={rollout_lock}"),
    )
    return {image.name: image for image in images}


def environment_image(folder: Path) -> Image:
    """The image of an environment: a folder with a Dockerfile that starts `ARG BASE` / `FROM ${BASE}`."""
    if not (folder / "Dockerfile").is_file():
        raise BuildError(f"{folder} is neither an image of Headway nor a folder with a Dockerfile")
    return Image(folder.name, str(folder.resolve()), base="sandbox", own_context=True)


def say(text: str) -> None:
    print(f"[images] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.1f} s")


def run(*command: str | Path, quiet: bool = False) -> None:
    """Run a command; what it prints is shown when it fails, or as it comes unless `quiet`."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        stdout=subprocess.PIPE if quiet else sys.stderr,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{done.stdout or ''}failed ({done.returncode}): {shlex.join(words)}")


def require(*programs: str) -> None:
    """Have Debian's packages of these programs, or say which are missing."""
    missing = [program for program in programs if not shutil.which(program)]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise BuildError(
            f"missing: {', '.join(missing)}; as root on Debian: apt-get install -y {' '.join(missing)}. "
            "With Docker: docker build -f images/NAME/Dockerfile ."
        )
    with step(f"apt-get install {' '.join(missing)}"):
        run("apt-get", "-qq", "update", quiet=True)
        run("apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing, quiet=True)


def files_of(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for child in sorted(path.rglob("*")):
        if child.is_file() and "__pycache__" not in child.parts:
            yield child


class Engine:
    """Docker, through its command line."""

    program = "docker"
    own_base = False
    """Whether the base is made from nothing instead of a published Debian image."""

    def __init__(self) -> None:
        os.environ["DOCKER_BUILDKIT"] = "1"

    def build(self, *arguments: str | Path) -> None:
        run(self.program, "build", *arguments, quiet=True)

    def has(self, name: str) -> bool:
        return answers(self.program, "image", "inspect", name)

    def save(self, name: str, reference: str, archive: Path) -> None:
        run("docker", "tag", name, reference)
        run("docker", "save", "--output", archive, reference)

    def load(self, archive: Path, reference: str, name: str) -> None:
        run("docker", "load", "--quiet", "--input", archive, quiet=True)
        run("docker", "tag", reference, name)

    def forget_older(self, name: str) -> None:
        """Remove the image's earlier contents from the store."""
        image, _, current = name.rpartition(":")
        listed = [self.program, "images", "--filter", f"reference={image}", "--format", "{{.Tag}}"]
        for tag in subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split():
            if tag != current:
                # Fails where another image still stands on it; then it goes with a later build.
                answers(self.program, "rmi", f"{image}:{tag}")


class Buildah(Engine):
    """buildah as root in a chroot: no daemon, no namespaces, no registry."""

    program = "buildah"
    own_base = True

    def __init__(self) -> None:
        require("buildah")

    def build(self, *arguments: str | Path) -> None:
        options = [
            "--isolation=chroot",
            "--format=oci",
            f"--timestamp={EPOCH}",
            "--layers=false",
            "--pull=never",
        ]
        # The certificates of this machine, for builds behind a proxy that signs for itself.
        options += ["--volume=/etc/ssl/certs:/etc/ssl/certs:ro"] if Path("/etc/ssl/certs").is_dir() else []
        super().build(*options, *arguments)

    def has(self, name: str) -> bool:
        return answers("buildah", "inspect", "--type=image", name)

    def save(self, name: str, reference: str, archive: Path) -> None:
        # Archives are read once, on this machine: time counts, not size.
        fast = ("--compression-format=gzip", "--compression-level=1")
        run("buildah", "push", "--quiet", *fast, name, f"oci-archive:{archive}:{reference}")

    def load(self, archive: Path, reference: str, name: str) -> None:
        run("buildah", "pull", "--quiet", f"oci-archive:{archive}", quiet=True)
        run("buildah", "tag", reference, name)


def answers(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def choose_engine() -> Engine:
    return Engine() if shutil.which("docker") and answers("docker", "info") else Buildah()


class Builder:
    """Builds images and what they stand on, each once."""

    def __init__(self, engine: Callable[[], Engine], images: dict[str, Image], prefix: str, tag: str) -> None:
        self.choose = engine
        self.images = images
        self.prefix = prefix
        self.tag = tag
        self.folder = CACHE / "images"
        self.folder.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def engine(self) -> Engine:
        """Chosen when first needed: with all archives there, nothing has to be installed."""
        return self.choose()

    def key(self, image: Image) -> str:
        """Hash of all that decides the image's content, its base included."""
        state = hashlib.sha256(f"{SUITE} {EPOCH} {image.arguments}".encode())
        if image.base:
            state.update(self.key(self.images[image.base]).encode())
        for top in (image.folder, *image.inputs):
            for file in files_of(ROOT / top):
                state.update(f"{file.relative_to(ROOT / top)}\0{file.stat().st_mode & 0o111}\0".encode())
                content = file.read_bytes()
                if image.target and file.name == "Dockerfile":
                    content = content.partition(b"\nFROM ${DEPS}\n")[0]
                state.update(content)
        return state.hexdigest()[:16]

    def reference(self, image: Image) -> str:
        return f"{self.prefix}/{image.name}:{self.tag}"

    def archive(self, image: Image) -> Path:
        named = hashlib.sha256(f"{self.key(image)} {self.reference(image)}".encode()).hexdigest()
        return self.folder / f"{image.name}-{named[:16]}.tar"

    def build(self, image: Image) -> Path:
        """The image's archive, made if it is not there."""
        archive = self.archive(image)
        if archive.exists():
            return archive
        with self.alone(f"{image.name}.archive"):
            if not archive.exists():
                stored = self.stored(image)
                with step(f"archive {archive.name}"):
                    partial = archive.with_suffix(".partial")
                    partial.unlink(missing_ok=True)
                    self.engine.save(stored, self.reference(image), partial)
                    partial.rename(archive)
                for old in self.folder.glob(f"{image.name}-{'[0-9a-f]' * 16}.tar"):
                    if old != archive:
                        old.unlink()
        return archive

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """One build of one thing at a time on this machine."""
        with (self.folder / f"{what}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def stored(self, image: Image) -> str:
        """The image's name in the engine's store, built or read from its archive if it is not there."""
        name = f"localhost/headway-build/{image.name}:{self.key(image)}"
        with self.alone(image.name):
            if not self.engine.has(name):
                self.obtain(image, name)
                self.engine.forget_older(name)
        return name

    def obtain(self, image: Image, name: str) -> None:
        if self.archive(image).exists():
            self.engine.load(self.archive(image), self.reference(image), name)
            return
        base = self.stored(self.images[image.base]) if image.base else None
        with step(image.name):
            if base is None and self.engine.own_base:
                bootstrap(self.engine, name)
            else:
                self.dockerfile(image, base, name)

    def dockerfile(self, image: Image, base: str | None, name: str) -> None:
        folder = ROOT / image.folder
        arguments = [f"{image.base_argument}={base}"] if base else []
        with build_settings() as settings:
            self.engine.build(
                f"--secret=id=build-env,src={settings}",
                *(f"--build-arg={argument}" for argument in (*arguments, *image.arguments)),
                *([f"--target={image.target}"] if image.target else []),
                "-t",
                name,
                "-f",
                folder / "Dockerfile",
                folder if image.own_context else ROOT,
            )


def bootstrap(engine: Engine, name: str) -> None:
    """The base, from Debian's packages alone."""
    require("mmdebstrap")
    packages = (ROOT / "images/base/packages.txt").read_text().split()
    provide = shlex.quote(str(ROOT / "images/base/provide.sh"))
    with tempfile.TemporaryDirectory(prefix="headway-base-") as scratch:
        layer = Path(scratch) / "base.tar"
        run(
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in NEVER_READ),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            f'--customize-hook=chroot "$1" sh -s < {provide}',
            '--customize-hook=cd "$1/var" && rm -rf log/* cache/ldconfig/* cache/debconf/*-old',
            SUITE,
            layer,
        )
        dockerfile = Path(scratch) / "Dockerfile"
        dockerfile.write_text("FROM scratch\nADD base.tar /\nENV LANG=C.UTF-8\n")
        engine.build("-t", name, "-f", dockerfile, scratch)


@contextlib.contextmanager
def build_settings() -> Iterator[Path]:
    """A file of the package settings in this machine's environment, for images/install.sh to source."""
    lines = [
        f"{name}={shlex.quote(value)}\n"
        for name, value in sorted(os.environ.items())
        if name.upper().startswith(INHERITED) and "FIND_LINKS" not in name and "CACHE" not in name
    ]
    with tempfile.NamedTemporaryFile("w", prefix="headway-build-", suffix=".env") as file:
        file.writelines(lines)
        file.flush()
        yield Path(file.name)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "images", nargs="*", help="base, host, operator, sandbox, rollout, trainer, or a folder"
    )
    parser.add_argument("--all", action="store_true", help="every image of Headway")
    parser.add_argument("--load", action="store_true", help="into the cluster of this machine")
    parser.add_argument("--prefix", default="localhost/headway", help="in front of the images' names")
    parser.add_argument("--tag", default="dev")
    parser.add_argument(
        "--rollout-lock", default="rollout-cpu", choices=("rollout-cpu", "rollout-gpu", "rollout")
    )
    options = parser.parse_args(arguments)
    images = catalogue(options.rollout_lock)
    names = [
        *((name for name, image in images.items() if not image.target) if options.all else ()),
        *options.images,
    ]
    if not names:
        parser.error("name the images, or --all")
    try:
        builder = Builder(choose_engine, images, options.prefix, options.tag)
        for name in dict.fromkeys(names):
            image = images.get(name) or environment_image(Path(name))
            archive = builder.build(image)
            print(f"{builder.reference(image)}\t{archive}", flush=True)
            if options.load:
                run(sys.executable, ROOT / "hack/cluster/cluster.py", "load-image", archive)
    except BuildError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
