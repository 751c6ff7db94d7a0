"""Which schemas are refused, and where; and what the others become."""

import time
from typing import Any

import pytest

from triptych.errors import InvalidRequestError
from triptych.json_schema import MAX_DEPTH, prepared, subschemas


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "place", "says"),
    [
        (5, "", "no schema"),
        ({"type": "objec"}, ".type", "must be of object"),
        ({"type": []}, ".type", "must be of object"),
        ({"type": [{}]}, ".type", "must be of object"),
        ({"properties": []}, ".properties", "must be an object"),
        ({"required": "a"}, ".required", "must be a list"),
        ({"properties": {"a": 1}}, ".properties.a", "no schema"),
        ({"anyOf": [{}, {"not": {}}]}, ".anyOf[1].not", "cannot be held"),
        ({"items": {"uniqueItems": True}}, ".items.uniqueItems", "cannot be held"),
        ({"if": {}, "then": {}}, ".if", "cannot be held"),
        ({"minimum": 1, "minLength": 1}, "", "name the type"),
        ({"type": "number", "multipleOf": 0.5}, ".multipleOf", "integers only"),
        ({"type": "integer", "multipleOf": 2, "minimum": 3}, ".minimum", "beside multipleOf"),
        ({"type": "string", "format": "iri"}, ".format", "must be one of"),
        ({"type": "string", "pattern": "a", "minLength": 1}, ".minLength", "beside pattern"),
        ({"type": "string", "pattern": "a", "format": "date"}, ".format", "beside pattern"),
        ({"type": "string", "pattern": "a\\n"}, ".pattern", "control"),
        ({"type": "string", "pattern": 'a"'}, ".pattern", "quotes"),
        ({"type": "string", "pattern": "(?=a)"}, ".pattern", "groups"),
        ({"type": "string", "pattern": "(a)\\1"}, ".pattern", "back references"),
        ({"type": "string", "pattern": "\\x22"}, ".pattern", "quotes"),
        ({"patternProperties": {"\\t": {}}}, ".patternProperties", "control"),
        ({"type": "string", "enum": ["a", 1]}, ".enum", "not of the type"),
        ({"type": "boolean", "const": 1}, ".const", "not of the type"),
        ({"enum": ["a"], "minLength": 1}, ".minLength", "beside enum"),
        ({"type": "object", "anyOf": [{}]}, ".type", "beside anyOf"),
        ({"anyOf": [{}], "oneOf": [{}]}, ".oneOf", "beside anyOf"),
        ({"$ref": "http://x/y"}, ".$ref", "must point into"),
        ({"$ref": "#name"}, ".$ref", "must point into"),
        ({"allOf": [{}, {}]}, ".allOf", "exactly one"),
        ({"required": ["z"]}, ".required", "names 'z'"),
        ({"properties": {"a": {}}, "propertyNames": {}}, ".propertyNames", "beside other"),
        (
            {"properties": {"a": {}}, "patternProperties": {"^b$": {}}},
            ".patternProperties",
            "beside other",
        ),
        ({"propertyNames": {}, "additionalProperties": {}}, ".propertyNames", "beside other"),
        (
            {"properties": {'a"': {}}, "additionalProperties": {"type": "null"}},
            '.properties.a"',
            "escapes",
        ),
        ({"properties": {"a\n": {}}, "unevaluatedProperties": True}, ".properties.a\n", "escapes"),
        (nested(MAX_DEPTH + 1), ".items" * (MAX_DEPTH + 1), "nested deeper than 64"),
    ],
)
def test_schema_that_would_not_be_held_is_refused_with_its_place(
    schema: Any, place: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        prepared(schema, "schema")
    assert error.value.param == "schema" + place
    assert says in error.value.message
    assert error.value.message.startswith("schema" + place)


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({}, {}),
        ({"title": "t", "default": 1, "x-own": []}, {"title": "t", "default": 1, "x-own": []}),
        ({"minimum": 1}, {"minimum": 1, "type": "number"}),
        ({"maxLength": 3}, {"maxLength": 3, "type": "string"}),
        ({"type": "object"}, {"type": "object"}),
        (
            {"properties": {"a": {"minItems": 1}}},
            {
                "properties": {"a": {"minItems": 1, "type": "array"}},
                "type": "object",
                "additionalProperties": False,
            },
        ),
        (
            {"type": "object", "properties": {}, "additionalProperties": {"minimum": 0}},
            {
                "type": "object",
                "properties": {},
                "additionalProperties": {"minimum": 0, "type": "number"},
            },
        ),
        (
            {"properties": {"a": {}}, "unevaluatedProperties": True},
            {"properties": {"a": {}}, "type": "object", "additionalProperties": True},
        ),
        (
            {"$defs": {"x": {"minimum": 0}}, "anyOf": [{"$ref": "#/$defs/x"}, {"maxLength": 1}]},
            {
                "$defs": {"x": {"minimum": 0, "type": "number"}},
                "anyOf": [{"$ref": "#/$defs/x"}, {"maxLength": 1, "type": "string"}],
            },
        ),
        ({"uniqueItems": False, "items": {}}, {"uniqueItems": False, "items": {}, "type": "array"}),
        ({"type": "integer", "enum": [1, 2.0]}, {"type": "integer", "enum": [1, 2.0]}),
        (nested(MAX_DEPTH), nested(MAX_DEPTH)),
    ],
)
def test_schema_is_closed_and_its_types_named(schema: Any, wanted: Any) -> None:
    before = repr(schema)
    assert prepared(schema, "schema") == wanted
    assert repr(schema) == before  # the caller's object is left as it is
    assert prepared(wanted, "schema") == wanted


@pytest.mark.parametrize(
    "schema",
    [{"anyOf": [True] * 25_000}, {"properties": {str(number): True for number in range(12_000)}}],
)
def test_the_largest_schema_is_read_in_a_moment(schema: Any) -> None:
    """Both are under the limit of characters; a copy for each part took 7.7 s and 2.2 s."""
    begun_s = time.process_time()
    prepared(schema, "schema")
    assert time.process_time() - begun_s < 1


def test_property_names_are_no_keywords() -> None:
    schema = {"properties": {"not": {}, "$ref": {}, "enum": {}}, "additionalProperties": False}
    assert prepared(schema, "s") == {**schema, "type": "object"}


def test_subschemas_are_named_by_their_keys() -> None:
    schema = {"properties": {"a/b": {}}, "anyOf": [{}, True], "items": False, "allOf": [{"x": 1}]}
    assert list(subschemas(schema)) == [
        (("properties", "a/b"), {}),
        (("anyOf", "0"), {}),
        (("anyOf", "1"), True),
        (("allOf", "0"), {"x": 1}),
    ]
    assert list(subschemas(True)) == []
