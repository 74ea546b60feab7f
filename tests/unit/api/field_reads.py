"""Which attributes of which classes a program reads, by the types that mypy infers.

A name alone is not enough: `name` is a field of twelve models. mypy knows the class of each attribute. A read
inside the package that declares a field counts only if it is in a function that somebody else calls. A rule
that only validates a field does not count.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mypy import build, nodes, types
from mypy.find_sources import create_source_list
from mypy.options import Options

ELSEWHERE = ("node", "info", "type", "var", "definition", "defn", "original_def")
"""Attributes of a node that lead to other parts of the program instead of its children."""


def attributes_read(roots: list[Path], packages: list[Path], declaring: tuple[str, ...]) -> set[str]:
    """Full names, such as headway_api.spec.model.Lora.rank, of what a program reads or calls.

    Args:
        roots: Folders that packages are imported from.
        packages: Folders of the packages.
        declaring: Prefixes of the names of the modules that declare the classes.
    """
    options = _options(roots)
    result = build.build(create_source_list([*map(str, packages)], options), options)
    owners: dict[int, str] = {}
    for name, file in result.files.items():
        if name.startswith(declaring):
            owners.update(_owners(file))
    read: set[str] = set()
    by_function: dict[str, set[str]] = defaultdict(set)
    for expression, _ in result.types.items():
        if not isinstance(expression, nodes.RefExpr):
            continue
        names = {*_names(expression, result.types)}
        owner = owners.get(id(expression))
        if owner is None:
            read |= names
        elif owner:
            by_function[owner] |= names
    return _with_what_they_call(read, by_function)


def _options(roots: list[Path]) -> Options:
    """Options of mypy.

    Imports of other projects are not followed: they do not matter here, and would take minutes.
    """
    options = Options()
    options.python_version = (3, 11)
    options.export_types = options.preserve_asts = True
    options.follow_imports, options.ignore_errors = "skip", True
    options.incremental, options.cache_dir = False, os.devnull
    options.namespace_packages = options.explicit_package_bases = True
    options.check_untyped_defs = True
    options.mypy_path = [*map(str, roots)]
    options.exclude = ["/templates/"]
    return options


def _with_what_they_call(read: set[str], by_function: dict[str, set[str]]) -> set[str]:
    """What is read, with what the functions read that are called."""
    found, todo = set(read), [*read]
    while todo:
        new = by_function.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def _names(expression: nodes.RefExpr, inferred: dict[nodes.Expression, types.Type]) -> Iterator[str]:
    if expression.fullname:
        yield expression.fullname
    if isinstance(expression, nodes.MemberExpr) and expression.expr in inferred:
        for info in _classes(inferred[expression.expr]):
            for base in info.mro:
                if expression.name in base.names:
                    yield f"{base.fullname}.{expression.name}"
                    break


def _classes(of: types.Type) -> Iterator[nodes.TypeInfo]:
    proper = types.get_proper_type(of)
    if isinstance(proper, types.Instance):
        yield proper.type
    elif isinstance(proper, types.UnionType):
        for item in proper.items:
            yield from _classes(item)
    elif isinstance(proper, types.TypeVarType):
        yield from _classes(proper.upper_bound)


def _owners(file: nodes.MypyFile) -> dict[int, str]:
    """Each expression of a file -> its function, or "" outside of functions, as in a rule's lambda."""
    owners: dict[int, str] = {}
    seen: set[int] = set()
    todo: list[tuple[nodes.Node, str]] = [(definition, "") for definition in file.defs]
    while todo:
        node, owner = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, nodes.FuncDef):
            owner = node.fullname
        if isinstance(node, nodes.RefExpr):
            owners[id(node)] = owner
        todo += [(child, owner) for child in _children(node)]
    return owners


def _children(node: nodes.Node) -> Iterator[nodes.Node]:
    for name in dir(type(node)):
        kind = type(getattr(type(node), name, None)).__name__
        if (
            name in ELSEWHERE
            or name.startswith("_")
            or kind not in ("getset_descriptor", "member_descriptor")
        ):
            continue
        todo = [getattr(node, name, None)]
        while todo:
            value = todo.pop()
            if isinstance(value, nodes.Node) and not isinstance(value, nodes.TypeInfo | nodes.MypyFile):
                yield value
            elif isinstance(value, list | tuple):
                todo += value
