"""Whatever an accepted schema's grammar lets through is valid; ``jsonschema`` is the judge."""

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.schemas import referring, schemas
from triptych.wire import StructuredOutputs
from triptych_generate.bindings import GrammarError, compile_grammar, make_compiler
from triptych_generate.constraint import Constraint

TOKENS = [bytes([code]) for code in range(32, 127)] + [b"\n", b"\t", b"\xc3\xa9", b'"', b'"']
#: A walk that took them all would write strings and lists without end.
CLOSERS = [index for index, token in enumerate(TOKENS) if token in {b'"', b"}", b"]"}]
END = len(TOKENS)
COMPILER = make_compiler([*TOKENS, b""])
BYTES_COMPILER = make_compiler([bytes([code]) for code in range(256)] + [b""])


def walk(outputs: StructuredOutputs, seed: int, max_tokens: int = 300) -> str | None:
    """A random output that the grammar allows; None if it found no end."""
    draw = random.Random(seed)
    compiled = compile_grammar(COMPILER, outputs)
    constraint = Constraint(compiled, vocab_size=END + 1, end_ids={END})
    output: list[int] = []
    while len(output) < max_tokens:
        allowed = [int(each) for each in constraint.allowed(output).nonzero()[0]]
        likely = [each for each in allowed if each in CLOSERS or each == END]
        token_id = draw.choice(likely if likely and draw.random() < 0.5 else allowed)
        if token_id == END:
            return b"".join(TOKENS[each] for each in output).decode()
        output.append(token_id)
    return None


@given(schemas | referring, st.integers(0, 999), st.booleans())
def test_every_output_of_an_accepted_schema_is_valid(
    schema: Any, seed: int, in_one_line: bool
) -> None:
    try:
        text = walk(StructuredOutputs(json=schema, disable_any_whitespace=in_one_line), seed)
    except GrammarError as error:
        if "Invalid range" not in error.message:  # bounds that no number meets
            raise
        return
    if text is not None:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("schema", "valid"),
    [
        ({"type": "string", "format": "date"}, '"2020-01-31"'),
        ({"type": "string", "format": "date-time"}, '"2020-01-31T10:00:00Z"'),
        ({"type": "string", "format": "uuid"}, '"123e4567-e89b-12d3-a456-426614174000"'),
        ({"type": "string", "format": "ipv4"}, '"1.2.3.4"'),
        ({"type": "object", "properties": {"a": {}}}, '{"a": [1, {"b": null}]}'),
        ({"type": "object"}, '{"a": 1, "b": {}}'),
        ({"type": "array", "minItems": 2}, '[1, "a"]'),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "null"),
        ({}, '{"any": ["thing", 1.5e3]}'),
        ({"properties": {"a": {"$ref": "#"}}}, '{"a": {"a": {}}}'),
    ],
)
def test_valid_output_is_allowed(schema: Any, valid: str) -> None:
    compiled = compile_grammar(COMPILER, StructuredOutputs(json=schema))
    constraint = Constraint(compiled, vocab_size=END + 1, end_ids={END})
    output = [TOKENS.index(bytes([code])) for code in valid.encode()]
    assert constraint.follow(output) is None
    assert constraint.allowed(output)[END]


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4), st.data())
def test_choices_are_held_exactly(choices: list[str], data: st.DataObject) -> None:
    compiled = compile_grammar(BYTES_COMPILER, StructuredOutputs(choice=choices))
    said = data.draw(st.sampled_from(choices) | st.text(min_size=1, max_size=6))
    constraint = Constraint(compiled, vocab_size=257, end_ids={256})
    is_held = constraint.follow(list(said.encode())) is None
    assert (is_held and bool(constraint.allowed(list(said.encode()))[256])) == (said in choices)


TEXTS = st.text(st.characters(max_codepoint=255) | st.sampled_from("0af"), min_size=1, max_size=4)


@given(TEXTS, TEXTS, st.integers(0, 99))
def test_names_and_constants_are_held_beside_strings_of_bounded_length(
    name: str, constant: str, seed: int
) -> None:
    properties = {name: {"const": constant}, "other": {"type": "string", "maxLength": 1}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    outputs = StructuredOutputs(json=schema, disable_any_whitespace=True)
    compiled = compile_grammar(BYTES_COMPILER, outputs)
    constraint = Constraint(compiled, vocab_size=257, end_ids={256})
    draw, output = random.Random(seed), list[int]()
    while (code := draw.choice(constraint.allowed(output).nonzero()[0].tolist())) != 256:
        output.append(code)
    assert json.loads(bytes(output).decode(errors="replace"))[name] == constant


def test_grammar_within_a_tag_is_held_beside_a_string_of_bounded_length() -> None:
    bounded = {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 1}}
    elements = [{"type": "grammar", "grammar": r"root ::= [\^a]"}, bounded]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    compiled = compile_grammar(BYTES_COMPILER, StructuredOutputs(structural_tag=json.dumps(tag)))
    constraint = Constraint(compiled, vocab_size=257, end_ids={256})
    assert bytes(constraint.allowed([]).nonzero()[0].tolist()) == b"^a"


@pytest.mark.parametrize(
    ("outputs", "where", "says"),
    [
        (StructuredOutputs(regex="a(b"), "regex", "position 4"),
        (StructuredOutputs(regex="(?=a)b"), "regex", "Lookahead"),
        (StructuredOutputs(grammar='root ::= "a" b'), "grammar", 'column 14: Rule "b"'),
        (StructuredOutputs(json={"$ref": "#/$defs/x"}), "json", "Cannot find"),
        (StructuredOutputs(structural_tag='{"type": "none"}'), "structural_tag", "type"),
        (
            StructuredOutputs(
                structural_tag=json.dumps(
                    {
                        "type": "structural_tag",
                        "format": {
                            "type": "json_schema",
                            "json_schema": {
                                "$comment": "tools[1].function.parameters",
                                "properties": {"a": {"minimum": 2, "maximum": 1}},
                            },
                        },
                    }
                )
            ),
            "tools[1].function.parameters.properties.a",
            "empty range",
        ),
        (
            StructuredOutputs(
                json={"properties": {"a/b": {"items": {"minimum": 2, "maximum": 1}}}}
            ),
            "json.properties.a/b.items",
            "empty range",
        ),
        (
            StructuredOutputs(json={"anyOf": [{}, {"type": "array", "items": [{}]}]}),
            "json.anyOf[1]",
            "items must be",
        ),
    ],
)
def test_grammar_that_cannot_be_compiled_says_where(
    outputs: StructuredOutputs, where: str, says: str
) -> None:
    with pytest.raises(GrammarError) as error:
        compile_grammar(COMPILER, outputs)
    assert error.value.where.removeprefix("sampling_params.structured_outputs.") == where
    assert says in error.value.message
    assert "/project/" not in error.value.message
