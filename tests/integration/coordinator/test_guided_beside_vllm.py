"""vLLM accepts the schemas that the gateway accepts, and its compiler enforces them without a dead end.

The test walks the compiler's own automaton: at each step it draws one of the allowed tokens at random.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from headway_coordinator.engines.vllm import Request, _body
from headway_coordinator.gateway import schemas
from headway_coordinator.gateway.asks import ANY_OBJECT

pytestmark = [pytest.mark.integration]
SEEDS = range(40)
MAX_TOKENS = 400
NAMES = ("name", "größe", 'a "b"', "two words", "🦊", "$ref")


def drawn(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random schema with most of the keywords that the gateway reads."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "limited"]
    kinds += ["object", "array", "any", "anyOf", "map", "ref"] if depth < 3 else []
    kind = chance.choice(kinds)
    low = chance.randint(-40, 40)
    made: dict[str, Any] = {
        "enum": lambda: {"enum": chance.sample(["gold", "lead", 3, 4.5, None, True, "é"], 3)},
        "const": lambda: {"const": chance.choice(["gold", 7, False, None])},
        "limited": lambda: chance.choice(
            [
                {"type": "string", "minLength": 2, "maxLength": 4},
                {"type": "integer", "minimum": low, "maximum": low + 30},
                {"type": "integer", "exclusiveMinimum": low},
                {"type": "number", "minimum": low, "exclusiveMaximum": low + 1},
                {"type": "string", "format": "date"},
                {"type": ["integer", "null"]},
            ]
        ),
        "object": lambda: _object(chance, depth),
        "array": lambda: {"type": "array", "items": drawn(chance, depth + 1), "minItems": 1, "maxItems": 3},
        "any": lambda: {"type": "object", "title": "Any", "description": "of them"},
        "anyOf": lambda: {chance.choice(["anyOf", "oneOf"]): [drawn(chance, depth + 1) for _ in range(2)]},
        "map": lambda: {"type": "object", "additionalProperties": drawn(chance, depth + 1)},
        "ref": lambda: {"$ref": "#/$defs/Leaf"},
    }.get(kind, lambda: {"type": kind})()
    return made


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(NAMES, chance.randint(1, 4))
    found = {"type": "object", "properties": {name: drawn(chance, depth + 1) for name in names}}
    return found | {"required": names[: chance.randint(0, 4)], "additionalProperties": False}


def whole(seed: int) -> dict[str, Any]:
    leaf = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Leaf"}, "on": {"type": "boolean"}}}
    return drawn(random.Random(seed)) | {"$defs": {"Leaf": leaf | {"additionalProperties": False}}}


def compiled(tok: Any, text: str) -> Any:
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tok, vocab_size=len(tok))
    return xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(text)


def walked(tok: Any, grammar: Any, chance: random.Random) -> tuple[str, bool]:
    """A text that the automaton allows, and whether it is complete."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[tok.eos_token_id])
    mask, tokens = xgrammar.allocate_token_bitmask(1, len(tok)), list[int]()
    for _ in range(MAX_TOKENS):
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")[: len(tok)]
        allowed = np.flatnonzero(bits)
        assert len(allowed), f"no token is allowed after {tok.decode(tokens)!r}"
        # If every token were drawn at random, a text would hardly ever end.
        ends = tok.eos_token_id in allowed or [
            one for one in allowed if tok.decode([one]).strip() in ('"', "}", "]")
        ]
        wanted = [tok.eos_token_id] if ends is True else ends
        token = int(chance.choice(wanted if wanted and chance.random() < 0.5 else list(allowed)))
        assert matcher.accept_token(token)
        if matcher.is_terminated():
            return tok.decode(tokens), True
        tokens.append(token)
    return tok.decode(tokens), False


@pytest.mark.parametrize("seed", SEEDS)
def test_outputs_follow_every_accepted_schema(tok: Any, seed: int) -> None:
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    schema = whole(seed)
    text = schemas.text(schema, "schema")
    params = GenerateRequest.model_validate(
        _body("m", "salt", Request([1], 8, 1.0, 1.0, 7, [0], schema=text))
    ).sampling_params
    assert params.structured_outputs is not None
    assert params.structured_outputs.json == text
    validate_xgrammar_grammar(params)  # if not, vLLM would use another compiler, which is not tested
    # The compiler treats `oneOf` as `anyOf`, as docs/agents.md says.
    meant = json.loads(json.dumps(schema).replace('"oneOf"', '"anyOf"'))
    grammar, ended = compiled(tok, text), 0
    for turn in range(4):
        output, whole_text = walked(tok, grammar, random.Random(f"{seed}/{turn}"))
        if whole_text:
            ended += 1
            jsonschema.validate(json.loads(output), meant)
    assert ended, "at least one walk comes to its end"


def test_the_any_object_grammar_yields_only_objects(tok: Any) -> None:
    grammar = compiled(tok, ANY_OBJECT)
    for turn in range(8):
        output, ended = walked(tok, grammar, random.Random(turn))
        assert not ended or isinstance(json.loads(output), dict)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "pattern": "^a+$"}, "b"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 1]),
        ({"type": "integer", "multipleOf": 5}, 3),
        ({"allOf": [{"type": "string"}, {"enum": ["a"]}]}, "b"),
        ({"not": {"type": "string"}}, "b"),
    ],
)
def test_schemas_the_compiler_ignores_or_hangs_on_are_refused(schema: Any, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)
    with pytest.raises(Exception, match="schema"):
        schemas.text(schema, "schema")
