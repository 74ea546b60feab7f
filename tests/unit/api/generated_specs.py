"""Objects made from the examples by changes that a schema and its rules suggest. They depend only on the
seed.

A change removes the value at a path of the schema, or replaces it by

- a value that an example or a case of the tables has there,
- a bound or a value next to it,
- a literal of a rule, or
- the value of another field that the rule names.

Parents are objects that the API server accepts, so most children have one error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from admission import Path, Placed

from headway_api.document import Json

STEPS = re.compile(r"[^.\[\]]+|\[\]")
CHAIN = re.compile(r"\b([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*)")
BINDING = re.compile(r"\b([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.(?:all|exists|exists_one|filter)\(([a-z]\w*),")
TEXT = re.compile(r"'((?:[^'\\]|\\.)*)'")
NUMBER = re.compile(r"(?<![\w.'])-?\d+(?:\.\d+)?(?![\w'])")
UNLIKELY = (
    "",
    "a\n",
    "é😀",
    "-",
    "file:///data/train.parquet",
    "hf://acme/qwen\n",
    "s3://b/k.csv\n",
    "A.b:C\n",
)
CHARACTERS = "\n -_./:=?#@0A"
QUANTITIES = (1, 0, -1, 1.5, True, "500m", "1Gi", "lots", "1\n", "0" * 33)
SHARES = (0, 0.001, 0.0099, 0.01, 0.5, 0.9, 0.91, 1, 1.5, 2, 1e-5, 1e-3, -0.5)
NAMES = ("default", "refunds", "a", "4refunds", "re.funds", "a-b", "a" * 40, "a" * 41)
"""Names of objects. Anything that is not a name is refused before a CRD is consulted."""
DECIMALS = ("0", "1", "00.5", "1.0", "0.99", "1.00000000000000000000001", "-0", "2", "1.", ".5", "1e3")


def nodes(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Each node of a schema by its path, such as spec.judges[].model.base."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value in an object, by the path of its node."""
    yield path, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from values(item, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from values(item, f"{path}[]")


def put(value: Any, path: Path, new: Any, *, remove: bool = False) -> Any:
    """A copy of a value with another value at a path. It shares the unchanged parts with the original."""
    if not path:
        return new
    step, below = path[0], path[1:]
    result = [*value] if isinstance(value, list) else {**value}
    if not below and remove:
        if isinstance(step, int):
            del result[step]
        else:
            result.pop(step, None)
        return result
    result[step] = put(result[step] if below else None, below, new, remove=remove)
    return result


def get(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


class Maker:
    """Makes objects of one kind."""

    def __init__(self, schema: Json, examples: Iterable[Json], draw: Random) -> None:
        self._draw = draw
        self._nodes = dict(nodes(schema))
        self._paths = [path for path in self._nodes if path.startswith("spec.")]
        self._seen: dict[str, list[Any]] = defaultdict(list)
        self._named: dict[Placed, list[str]] = {}
        for example in examples:
            for path, value in values(example):
                for key in (path, path.rpartition(".")[2]):
                    if value not in self._seen[key]:
                        self._seen[key].append(value)

    def child(self, parent: Json, rule: Placed | None) -> Json:
        """A copy of `parent` that differs in what `rule` names, in something else, or in both."""
        draw = self._draw
        made = parent
        if rule is not None:
            named = self.named_by(rule)
            for path in draw.sample(named, k=draw.randint(1, min(3, len(named)))):
                made = self._changed(made, path, rule)
        if rule is None or draw.random() < 0.25:
            for _ in range(draw.randint(1, 3)):
                made = self._changed(made, draw.choice(self._paths), None)
        return made

    def grafted(self, parent: Json, other: Json, rule: Placed) -> Json:
        """`parent` with another value in a field of a rule of a change, often with the value of `other`."""
        path = self._draw.choice([one for one in self.named_by(rule) if one != "spec.suspend"])
        if self._draw.random() < 0.6:
            inside = [one for one in self._paths if one.startswith((f"{path}.", f"{path}["))]
            return self._changed(parent, self._draw.choice([path, *inside]), rule)
        *above, last = STEPS.findall(path)
        source = other
        here = parent
        for step in above:
            if step not in source or step not in here:
                return self.child(parent, rule)
            source, here = source[step], here[step]
        return put(parent, (*above, last), source.get(last), remove=last not in source)

    def named_by(self, rule: Placed) -> list[str]:
        """Paths of the nodes that a rule reads."""
        if rule not in self._named:
            self._named[rule] = [*dict.fromkeys(self._read(rule))]
        return self._named[rule]

    def _read(self, rule: Placed) -> Iterator[str]:
        code = TEXT.sub("''", rule.cel)
        roots = {"self": rule.at, "object": ""}
        for source, variable in BINDING.findall(code):
            if (path := self._resolved(source, roots)) is not None:
                roots[variable] = f"{path}[]"
        for root, rest in CHAIN.findall(code):
            if (path := self._resolved(root + rest, roots)) is not None and path != "spec":
                yield path

    def _resolved(self, chain: str, roots: dict[str, str]) -> str | None:
        """The longest path of a node that `self.a.b.method` begins with."""
        root, *names = chain.split(".")
        if root not in roots:
            return None
        path = roots[root]
        for name in names:
            longer = f"{path}.{name}".lstrip(".")
            if longer not in self._nodes and longer != "metadata.name":
                break
            path = longer
        return path or None

    def _changed(self, made: Json, path: str, rule: Placed | None) -> Json:
        steps = STEPS.findall(path)
        at: Path = ()
        node = ""
        for index, step in enumerate(steps):
            node = f"{node}[]" if step == "[]" else f"{node}.{step}".lstrip(".")
            here, last = get(made, at), index == len(steps) - 1
            if not isinstance(here, list if step == "[]" else dict):
                return made
            if step == "[]":
                if not here:
                    made = put(made, at, [self._value(node, None)])
                at = (*at, self._draw.randrange(max(1, len(here))))
            else:
                at = (*at, step)
                if step not in here and not last:
                    made = put(made, at, self._block(node))
        if path == "metadata.name":
            return put(made, at, self._draw.choice(NAMES))
        if self._draw.random() < (0.4 if rule and "has(" in rule.cel else 0.15):
            return put(made, at, None, remove=True) if self._has(made, at) else made
        others = self._others(made, rule) if rule else []
        return put(made, at, self._value(path, rule, others))

    @staticmethod
    def _has(made: Json, at: Path) -> bool:
        above = get(made, at[:-1])
        return bool(at[-1] in above) if isinstance(above, dict) else True

    def _others(self, made: Json, rule: Placed) -> list[Any]:
        """Values of the other fields that the rule names, and values next to them."""
        named = set(self.named_by(rule))
        found = [value for path, value in values(made) if path in named]
        return [near for value in found for near in self._near(value)]

    @staticmethod
    def _near(value: Any) -> list[Any]:
        if isinstance(value, int) and not isinstance(value, bool):
            return [value - 1, value, value + 1]
        return [value]

    def _block(self, path: str) -> Any:
        """A block to put deeper values into."""
        node = self._nodes[path]
        seen = [value for value in self._seen[path] if isinstance(value, dict | list) and value]
        if seen and self._draw.random() < 0.8:
            return self._draw.choice(seen)
        return [] if node.get("type") == "array" else self._made(path, node)

    def _value(self, path: str, rule: Placed | None, others: list[Any] | None = None) -> Any:
        node = self._nodes.get(path, {"type": "string"})
        chance = self._draw.random()
        if chance < 0.02:
            return None
        if rule is not None and chance < 0.35:
            fitting = [one for one in (*self._literals(rule), *(others or [])) if self._fits(one, node)]
            if fitting:
                return self._draw.choice(fitting)
        seen = self._seen[path if chance < 0.65 and self._seen[path] else path.rpartition(".")[2]]
        if seen and chance < 0.7:
            return self._draw.choice(seen)
        return self._made(path, node)

    def _literals(self, rule: Placed) -> list[Any]:
        texts = [text.replace("\\\\", "\\") for text in TEXT.findall(rule.cel)]
        numbers = [float(n) if "." in n else int(n) for n in NUMBER.findall(TEXT.sub("''", rule.cel))]
        return [*texts, *(near for number in numbers for near in self._near(number))]

    @staticmethod
    def _fits(value: Any, node: Json) -> bool:
        kind = node.get("type", "string")
        wanted = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
        wanted |= {"object": dict, "array": list}
        return isinstance(value, wanted[kind]) and (kind == "boolean" or not isinstance(value, bool))

    def _made(self, path: str, node: Json) -> Any:
        """A value of a node's type, often at the limits of what is allowed."""
        draw = self._draw
        if "enum" in node:
            return draw.choice(node["enum"] * 8 + ["Sometimes"])
        if "x-kubernetes-int-or-string" in node:
            return draw.choice(QUANTITIES)
        match node.get("type"):
            case "boolean":
                return draw.choice([True, False] * 10 + ["true", 1])
            case "integer":
                low, high = node.get("minimum", 0), node.get("maximum", 2**31)
                usual = [low, low + 1, high, node.get("default", low), draw.randint(low, min(high, low + 64))]
                return draw.choice(usual * 3 + [low - 1, high + 1, "1", 1.5])
            case "number":
                low, high = node.get("minimum", 0), node.get("maximum", 1)
                return draw.choice([low, high, *SHARES * 2, low - 0.001, high + 0.001, "0.5"])
            case "string":
                return self._text(path, node)
            case "array":
                return self._list(path, node)
        return self._object(path, node)

    def _text(self, path: str, node: Json) -> str:
        draw, longest = self._draw, node.get("maxLength", 64)
        seen = [value for value in self._seen[path] if isinstance(value, str)] or ["a"]
        if draw.random() < 0.4:
            return self._edited(draw.choice(seen))
        strange = (*DECIMALS, *UNLIKELY)
        fitting = [text for text in strange if re.search(node.get("pattern", ""), text)]
        if fitting and draw.random() < 0.6:
            return draw.choice(fitting)
        return draw.choice(["a", "a" * longest, "a" * (longest + 1), f"a-{draw.randint(0, 9)}", *strange])

    def _edited(self, text: str) -> str:
        """A text with one character added, removed or doubled."""
        at = self._draw.randint(0, len(text))
        return text[:at] + self._draw.choice(["", *CHARACTERS]) + text[at + self._draw.randint(0, 1) :]

    def _list(self, path: str, node: Json) -> list[Any]:
        draw = self._draw
        least, limit = node.get("minItems", 0), node.get("maxItems", 8)
        size = draw.choice([0, 1, 1, 2, 2, 3, least, limit, limit + 1])
        if size > 4 and "properties" in node["items"]:
            size = 4
        made = [self._value(f"{path}[]", None) for _ in range(size)]
        return made + made[:1] if draw.random() < 0.2 else made

    def _object(self, path: str, node: Json) -> Json:
        draw = self._draw
        if "properties" in node:
            needed = set(node.get("required", []))
            chosen = {name for name in node["properties"] if name in needed or draw.random() < 0.2}
            made = {
                name: self._value(f"{path}.{name}", None) for name in node["properties"] if name in chosen
            }
            return made | ({"unknown": 1} if draw.random() < 0.03 else {})
        inner = node.get("additionalProperties")
        names = draw.sample(["a", "foothold", "cpu", "b c", ""], k=draw.randint(0, 3))
        if isinstance(inner, dict):
            return {name: self._made(f"{path}{{}}", inner) for name in names}
        return {name: draw.choice([None, 1, True, 1.0, [], ["x"], {"y": {}}]) for name in names}
