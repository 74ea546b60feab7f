"""The end of a process's output, kept in the job's folder of the artifact store.

Pods are deleted when their job ends, and their logs with them. Each process stores its own log, so nobody
needs the right to read a namespace's logs. A process stores its log every `EVERY_SECONDS` if there is new
output, and when it ends. If it is killed, its last output may be lost. A process that may not write to the
store keeps no log.
"""

from __future__ import annotations

import atexit
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, TextIO

from headway_api import names
from headway_api.artifacts import Layout
from headway_api.bounds import KIB
from headway_api.config import EvalConfig, JobConfig
from headway_api.store import open_store

MAX_BYTES: Final = 64 * KIB
"""Maximum bytes of output that are kept for a process."""
EVERY_SECONDS: Final = 30.0
END_SECONDS: Final = 5.0
"""Maximum seconds that an ending process waits for the store."""
SHORTEST: Final = 8
"""Minimum characters of a value that is treated as a secret. A shorter value may be an ordinary word."""
SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
HIDDEN: Final = "[secret]"

Put = Callable[[bytes], None]


class _Tee:
    """Passes all text on to a stream, and also to `heard`."""

    def __init__(self, stream: TextIO, heard: Callable[[str], object]) -> None:
        self._stream = stream
        self._heard = heard

    def write(self, text: str) -> int:
        self._heard(text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LastLogs:
    """The last output of one process. May be used by any thread."""

    def __init__(self, put: Put, secrets: Iterable[str] = ()) -> None:
        """`put` replaces the stored log with a new one. The log has a placeholder for each of `secrets`."""
        self._put = put
        self._secrets = sorted({each for each in secrets if len(each) >= SHORTEST}, key=len, reverse=True)
        self._lock, self._keeping = threading.Lock(), threading.Lock()
        self._text = ""
        self._kept = b""
        self._failure_printed = False

    def hear(self, text: str) -> None:
        """Record that the process wrote `text`."""
        with self._lock:
            # This keeps more than `content` returns, so a secret that a cut splits falls outside it.
            self._text += text
            if len(self._text) > 4 * MAX_BYTES:
                self._text = self._text[-2 * MAX_BYTES :]

    def content(self) -> bytes:
        """The end of the output, without secrets, from the beginning of a line."""
        with self._lock:
            text = self._text
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        whole = text.encode(errors="replace")
        return whole if len(whole) <= MAX_BYTES else whole[-MAX_BYTES:].partition(b"\n")[2]

    def keep(self) -> None:
        """Store the present content, unless it is stored already. A failed write is retried next time."""
        with self._keeping:
            content = self.content()
            if content == self._kept:
                return
            try:
                self._put(content)
            except Exception as error:  # a store's client may raise anything; the job must survive it
                if not self._failure_printed:
                    print(f"last logs are not kept: {type(error).__name__}", file=sys.__stderr__, flush=True)
                self._failure_printed = True
                return
            self._kept = content

    def keep_at_end(self) -> None:
        """Store the content of a process that ends, within `END_SECONDS`."""
        last = threading.Thread(target=self.keep, daemon=True)
        try:
            last.start()
        except RuntimeError:  # the interpreter no longer starts threads
            self.keep()
        else:
            last.join(END_SECONDS)

    def begin(self) -> None:
        """Record all output from now on, and store it periodically."""
        sys.stdout, sys.stderr = _Tee(sys.stdout, self.hear), _Tee(sys.stderr, self.hear)
        threading.Thread(target=self._again, name="last-logs", daemon=True).start()

    def _again(self) -> None:
        pause = threading.Event()
        while not pause.wait(EVERY_SECONDS):
            self.keep()


_current: LastLogs | None = None


def begin(
    environ: Mapping[str, str], job: JobConfig | EvalConfig, secrets: Iterable[str], container: str
) -> None:
    """Keep the output of this process of a job. A process that is not a pod keeps nothing.

    Args:
        environ: names the pod, and has the secrets of the store.
        secrets: other secrets of the process; the log has a placeholder for each.
        container: the process's name in its pod.
    """
    global _current
    pod = environ.get(names.ENV_POD_NAME)
    if pod is None or _current is not None:
        return
    uri = Layout(job.spec.output.uri, job.namespace, job.name, job.uid).last_log(pod, container)
    hidden = [*secrets, *(value for name, value in environ.items() if SECRET_NAME.search(name.upper()))]
    store = cache(lambda: open_store(job.spec.output))
    _current = LastLogs(lambda content: store().put(uri, content), hidden)
    _current.begin()
    atexit.register(keep_at_end)  # runs after a traceback is printed


def keep_at_end() -> None:
    """Store the output of a process that is about to end."""
    if _current is not None:
        _current.keep_at_end()
