"""Parses responses of the API server, with limits on size and depth. Pure.

Anyone who may write a custom resource, or an object with a job's labels, decides how large and how deep it
is. Of an object that is out of bounds, only the identity is read, and no other object is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from headway_api import names
from headway_api.bounds import KIB, MIB, OutOfBoundsError, json_elements, json_members, json_within
from headway_api.document import Json

OBJECT_BYTES: Final = 4 * MIB
"""Maximum bytes of one object or event. The API server stores at most 1.5 MiB, and adds some fields."""
PAGE_BYTES: Final = 16 * MIB
"""Maximum bytes of one page of a list. A larger page is requested again in smaller ones."""
DEPTH: Final = 48
"""Maximum levels of nesting in a page or an object of Kubernetes' own kinds, managedFields included."""
VALUES: Final = 100_000
WHOLE_BYTES: Final = 4 * MIB
"""A larger page is read object by object, so that only the needed part of each object is in memory."""
SPEC_BYTES: Final = 256 * KIB
SPEC_VALUES: Final = 20_000
"""Maximum values in a job's whole spec."""
BLOCK_BYTES: Final = 192 * KIB
BLOCK_VALUES: Final = 10_000
"""Maximum values in one top-level block of a spec that is too large to be read whole."""
STATUS_BYTES: Final = MIB
STATUS_VALUES: Final = 50_000
WORD_BYTES: Final = 2 * KIB
FIELD_LEVELS: Final = 3
"""How many levels below `spec` to look for the field that is out of bounds."""
FREE_FORM: Final = ("config", "contract", "args", "podTemplate")
"""Fields whose content has no schema. Messages name the field, not what is inside it."""

UNREAD: Final = "unread"
"""Key beside `metadata` that says why an object was not read whole. No API object has such a field."""
IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion")
LABELS: Final = (f"{names.GROUP}/", "app.kubernetes.io/")
"""Prefixes of the labels that are kept from a job's objects."""
SMALLER: Final = "write it smaller and flatter"


def document(raw: bytes) -> Json:
    """Parse an answer: one object of Kubernetes' own kinds, or a Status.

    Raises:
        OutOfBoundsError: the answer cannot be read.
    """
    found = json_within(raw, OBJECT_BYTES, depth=DEPTH, values=VALUES)
    if not isinstance(found, dict):
        raise OutOfBoundsError("not a JSON object")
    return found


def identity_of(raw: bytes) -> Json:
    """Name, namespace, uid, resource version and deletion time of an object. No other field is parsed.

    Raises:
        OutOfBoundsError: the object has no readable identity.
    """
    metadata = json_members(json_members(raw, OBJECT_BYTES).get("metadata", b"{}"), OBJECT_BYTES)
    found: Json = {key: _word(metadata[key]) for key in IDENTITY if key in metadata}
    if "deletionTimestamp" in metadata:
        found["deletionTimestamp"] = _word(metadata["deletionTimestamp"])
    return _identified({"metadata": found})


def _identified(body: Any) -> Json:
    """Check that an object has name, uid and a numeric resource version; returns the object."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    known = metadata if isinstance(metadata, dict) else {}
    texts = [known.get(key) for key in ("name", "uid", "resourceVersion")]
    if not all(isinstance(text, str) and text for text in texts) or not str(texts[-1]).isdigit():
        raise OutOfBoundsError("an object without name, uid or resourceVersion")
    found: Json = body
    return found


def _word(raw: bytes) -> str:
    found = json_within(raw, WORD_BYTES)
    if not isinstance(found, str):
        raise OutOfBoundsError("a value in metadata that is not text")
    return found


def some_object(raw: bytes) -> Json:
    """An object of Kubernetes' own kinds, or its identity with `UNREAD`.

    Raises:
        OutOfBoundsError: not even the identity can be read.
    """
    try:
        found = document(raw)
    except OutOfBoundsError as error:
        return identity_of(raw) | {UNREAD: str(error)}
    return _identified(found)


def event(line: bytes, *, identity: bool = False) -> Json:
    """Parse a line of a watch: `type` and `object`. With `identity`, only the object's identity is read.

    Raises:
        OutOfBoundsError: the line does not show what happened to which object.
    """
    parts = json_members(line, OBJECT_BYTES)
    kind, body = _word(parts.get("type", b"")), parts.get("object", b"")
    if kind == "ERROR":
        return {"type": kind, "object": document(body)}
    if kind == "BOOKMARK":
        metadata = json_members(json_members(body, OBJECT_BYTES).get("metadata", b"{}"), OBJECT_BYTES)
        version = _word(metadata.get("resourceVersion", b""))
        return {"type": kind, "object": {"metadata": {"resourceVersion": version}}}
    return {"type": kind, "object": identity_of(body) if identity else some_object(body)}


def page(raw: bytes, *, identity: bool = False) -> tuple[Iterator[Json], Json]:
    """The objects of a page of a list, and the list's own metadata.

    Objects without an identity are omitted.

    Raises:
        OutOfBoundsError: the page is not a list.
    """
    if not identity and len(raw) <= WHOLE_BYTES:
        try:
            whole = json_within(raw, WHOLE_BYTES, depth=DEPTH, values=VALUES)
            return _each(whole["items"] or [], _identified), whole["metadata"]
        except (OutOfBoundsError, KeyError, TypeError):
            pass
    parts = json_members(raw, PAGE_BYTES)
    metadata = document(parts.get("metadata", b"{}"))
    texts = [] if parts.get("items", b"null") == b"null" else json_elements(parts["items"], PAGE_BYTES)
    return _each(texts, identity_of if identity else some_object), metadata


def _each(items: list[Any], read: Callable[[Any], Json]) -> Iterator[Json]:
    for item in items:
        try:
            yield read(item)
        except OutOfBoundsError:
            continue


def job(raw: bytes) -> Json:
    """A custom resource: whole, or without the blocks of its spec that are out of bounds.

    `UNREAD` names each missing block, and says why and what to write.

    Raises:
        OutOfBoundsError: the object's metadata cannot be read.
    """
    parts = json_members(raw, OBJECT_BYTES)
    metadata = {
        key: json_within(text, SPEC_BYTES, values=BLOCK_VALUES)
        for key, text in json_members(parts.get("metadata", b"{}"), OBJECT_BYTES).items()
        if key != "managedFields"
    }
    spec, issues = _spec(parts.get("spec", b"{}"))
    body: Json = {key: _word(parts[key]) for key in ("apiVersion", "kind") if key in parts}
    body |= {"metadata": metadata, "spec": spec}
    try:
        body["status"] = json_within(parts.get("status", b"{}"), STATUS_BYTES, values=STATUS_VALUES)
    except OutOfBoundsError as error:
        body["status"] = {}
        issues.append(f"status: {error}; delete the job and create it again")
    return body | ({UNREAD: "; ".join(issues)} if issues else {})


def _spec(raw: bytes) -> tuple[Json, list[str]]:
    try:
        found = json_within(raw, SPEC_BYTES, values=SPEC_VALUES)
    except OutOfBoundsError:
        return _blocks(raw)
    return (found, []) if isinstance(found, dict) else ({}, ["spec: must be an object"])


def _blocks(raw: bytes) -> tuple[Json, list[str]]:
    spec: Json = {}
    issues = []
    for name, text in json_members(raw, OBJECT_BYTES).items():
        try:
            spec[name] = json_within(text, BLOCK_BYTES, values=BLOCK_VALUES)
        except OutOfBoundsError as error:
            issues.append(f"{_field_out_of_bounds(f'spec.{name}', text)}: {error}; {SMALLER}")
    return spec, issues


def _field_out_of_bounds(field: str, raw: bytes) -> str:
    """The path of the deepest field in a block that is out of bounds by itself."""
    for _ in range(FIELD_LEVELS - 1):
        if field.rpartition(".")[2] in FREE_FORM:
            break
        try:
            beyond = next((part for part in _inner(raw) if not _is_within(part[1])), None)
        except OutOfBoundsError:
            break
        if beyond is None:
            break
        field, raw = field + beyond[0], beyond[1]
    return field


def _inner(raw: bytes) -> list[tuple[str, bytes]]:
    """Elements of a list or members of an object, each with its path suffix and its JSON text."""
    if raw.startswith(b"["):
        return [(f"[{at}]", text) for at, text in enumerate(json_elements(raw, OBJECT_BYTES))]
    return [(f".{name}", text) for name, text in json_members(raw, OBJECT_BYTES).items()]


def _is_within(raw: bytes) -> bool:
    try:
        json_within(raw, BLOCK_BYTES, values=BLOCK_VALUES)
    except OutOfBoundsError:
        return False
    return True


POD_SPEC: Final = ("nodeName", "nodeSelector", "affinity")


def slim(body: Json) -> Json:
    """Remove fields that nobody reads. An object that a job owns keeps only what the planner reads."""
    metadata = body["metadata"]
    metadata.pop("managedFields", None)
    if body["kind"] in names.CUSTOM:
        return body
    metadata.pop("annotations", None)
    if isinstance(labels := metadata.get("labels"), dict):
        metadata["labels"] = {key: value for key, value in labels.items() if key.startswith(LABELS)}
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return body
    if body["kind"] == "Pod":
        body["spec"] = {key: spec[key] for key in POD_SPEC if key in spec}
        body["spec"]["containers"] = [
            {key: container[key] for key in ("name", "image", "envFrom", "resources") if key in container}
            for container in spec.get("containers") or []
        ]
    else:
        spec.pop("template", None)
    return body
