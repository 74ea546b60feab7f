"""The process in a sandbox pod: `python -m headway_sandbox.server`.

The server imports the environment named by `HEADWAY_ENTRYPOINT`, constructs it with
`HEADWAY_ENVIRONMENT_CONFIG` and serves one episode (the sandbox part of `headway_api.sandbox_api`). If an
environment cannot be imported or refuses its configuration, the process ends with exit code 42. Its
termination message goes to the job's status. The server runs as PID 1, where signals have no default action.
SIGTERM ends it at once, so that a pod ends fast.

Before it imports anything from the image, the server makes itself unreadable and removes its variables. A
program that a tool starts has the same user, and could otherwise read the lease's token and the state of the
episode from /proc. Code on the model's behalf belongs in the container `runner`. If the pod has one, the
server waits for it here.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from headway_sandbox import process, reach
from headway_sandbox.awaited import awaited_result
from headway_sandbox.environment import Environment
from headway_sandbox.faults import ENTRYPOINT_FIELD, described
from headway_sandbox.http import HttpError, Served, inherited, listen
from headway_sandbox.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from typing import Any, NoReturn

    from headway_sandbox.http import Admit, Handler, Reply

PORT = 8080
TERMINATION_FILE = "/dev/termination-log"
PERMANENT = 42
"""Equal to `headway_api.exits.PERMANENT`: a restart without a change cannot help."""


NAMED = 5
"""Maximum environments of a module that an error names."""


class EnvironmentLoadError(Exception):
    """The environment cannot be loaded: change the entrypoint or its configuration."""


def load(entrypoint: str, config: Mapping[str, Any]) -> Environment:
    """Import `module:Class` and construct it.

    Raises:
        EnvironmentLoadError: it cannot be imported, is no environment, or refuses its configuration.
    """
    module_name, _, class_name = entrypoint.partition(":")
    module: object = None
    try:
        module = __import__(module_name, fromlist=[class_name])
        cls = getattr(module, class_name)
    except BaseException as error:  # also SystemExit: an environment must not end its server
        message = f"{entrypoint} cannot be imported: {described(error)}"
        raise EnvironmentLoadError(message + (instead(module_name, module) if module else "")) from error
    if not is_environment(cls):
        message = f"{entrypoint} is not a subclass of headway_sandbox.environment.Environment"
        raise EnvironmentLoadError(message + instead(module_name, module))
    try:
        environment: Environment = cls(config)
        awaited_result(environment.tools())
    except BaseException as error:
        raise EnvironmentLoadError(
            f"{entrypoint} refused spec.environment.config: {described(error)}"
        ) from error
    return environment


def is_environment(value: object) -> bool:
    """Whether a value is a class that an entrypoint may name."""
    return isinstance(value, type) and issubclass(value, Environment)


def instead(name: str, module: object) -> str:
    """The part of an error that lists the module's entrypoints."""
    here = [
        each for each, value in vars(module).items() if is_environment(value) and value is not Environment
    ]
    found = here[:NAMED]
    return f"; write {' or '.join(f'{name}:{each}' for each in found)}" if found else ""


OPEN_TO_ALL = {("GET", "/healthz"), ("POST", "/lease"), ("POST", "/proof")}
"""Requests that need no token."""


def steps(session: Session) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Requests that the holder of the lease may make, by path."""
    return {
        "/reset": session.reset,
        "/tool": session.call,
        "/agent": session.start_agent,
        "/agent/wait": session.wait_for_agent,
        "/finish": session.finish,
        "/probe": reach.probe,
        "/group": session.group,
        "/judge/questions": session.questions,
        "/judge/answer": session.answer,
    }


def admission(session: Session) -> Admit:
    """Decides from a request's head, before its body is read, whether to admit it."""
    known = steps(session).keys()

    def admit(method: str, path: str, token: str) -> bool:
        if (method, path) in OPEN_TO_ALL:
            return session.knows(token)
        if method != "POST" or path not in known:
            raise HttpError(404, "NotFound", f"there is no {method} {path}")
        if not session.knows(token):
            raise HttpError(401, "LeaseMismatch", "the token is not that of this sandbox's lease")
        return True

    return admit


def routes(session: Session) -> Handler:
    """The sandbox API over one session, for admitted requests."""
    known = steps(session)

    def handle(method: str, path: str, token: str, body: dict[str, Any]) -> Reply:
        if path == "/healthz":
            return 200, session.health()
        if path == "/lease":
            session.bind(body)
            return 204, None
        if path == "/proof":
            return 200, session.prove(body)
        return 200, known[path](body)

    return handle


def leave(error: EnvironmentLoadError) -> NoReturn:
    """End the process with a termination message (`headway_api.exits.Termination`)."""
    message = str(error)
    sys.excepthook(type(error), error, error.__traceback__)
    document = {"reason": "EnvironmentNotImportable", "field": ENTRYPOINT_FIELD, "message": message[:2048]}
    path = os.environ.get("HEADWAY_TERMINATION_FILE", TERMINATION_FILE)
    if os.path.exists(path):
        with open(path, "w") as file:
            json.dump(document, file)
    sys.exit(PERMANENT)


def main(environ: MutableMapping[str, str] = os.environ) -> None:
    """Serve until the pod is deleted or its lease expires."""
    process.hide()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    if environ.pop("HEADWAY_REACH_AT_START", ""):
        reach.begin(environ)
    config = json.loads(environ.pop("HEADWAY_ENVIRONMENT_CONFIG", "") or "{}")
    entrypoint, port = environ.pop("HEADWAY_ENTRYPOINT"), int(environ.pop("HEADWAY_SANDBOX_PORT", PORT))
    where, given = environ.pop("HEADWAY_RUNNER", ""), environ.pop("HEADWAY_SANDBOX_SOCKET", "")
    # Before any code of the environment runs, so that none of its programs inherits the socket.
    listener = inherited(int(given)) if given else None
    try:
        if not where:
            session = Session(lambda: load(entrypoint, config))
        else:
            from headway_sandbox import runner  # other pods do not pay for its imports

            arrived = runner.awaited(where)
            session = Session(lambda: load(entrypoint, config), runner.sweep)
            arrived()
    except EnvironmentLoadError as error:
        leave(error)
    served = Served(routes(session), admission(session))
    session.answer_for = served.answer_for
    served.serve(listener or listen(port))


if __name__ == "__main__":
    main()
