"""Which JSON schemas can be held while generating, and the form in which they are compiled.

xgrammar ignores what it does not know, and then the output would not match the schema. So here
every assertion that it would ignore is refused, with its path. What it was found to hold or to
ignore is in docs/structured.md; the tests sample outputs and validate them with ``jsonschema``.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from triptych.errors import InvalidRequestError

#: Schemas within schemas; deeper ones take xgrammar minutes.
MAX_DEPTH = 64

_OBJECT = {
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "unevaluatedProperties",
}
_ARRAY = {"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"}
_STRING = {"pattern", "format", "minLength", "maxLength"}
_NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_ASSERTIONS = {"type", *_OBJECT, *_ARRAY, *_STRING, *_NUMBER}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
#: The first of these that a schema has decides alone: xgrammar looks at nothing beside it.
_DECIDERS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_IGNORED = {
    "not",
    "if",
    "then",
    "else",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "additionalItems",
    "$dynamicRef",
    "$recursiveRef",
}
_FORMATS = {
    "date",
    "time",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
    "json-pointer",
    "relative-json-pointer",
}
_OTHERS = ("additionalProperties", "unevaluatedProperties")
#: What xgrammar takes literally in a pattern, or writes into JSON without its escape.
_UNHELD_IN_PATTERNS = re.compile(
    r'["\x00-\x1f]|\\[\\nrtfv0c1-9]|\\(?:x|u00)(?:[01].|22|5[cC])|\(\?(?!:)'
)
_SHAPES: dict[str, tuple[type, ...]] = {
    "type": (str, list),
    "required": (list,),
    "enum": (list,),
    "pattern": (str,),
    "format": (str,),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), (dict,)),
    **dict.fromkeys(("prefixItems", "anyOf", "oneOf", "allOf"), (list,)),
}
_SHAPE_NAMES: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
#: Keywords that hold schemas by name, in a list, or one.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "propertyNames")


def prepared(schema: Any, path: str) -> Any:
    """``schema`` as it is compiled: objects that list properties are closed, types are named.

    Raises:
        InvalidRequestError: a part that would not be held; ``param`` is its path, from ``path``.
    """
    return _prepared(schema, path, depth=0)


def subschemas(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Keys and value of each schema directly within ``schema``."""
    if not isinstance(schema, dict):
        return
    for keyword in _NAMED:
        named = schema.get(keyword)
        for name, each in (named or {}).items():
            yield (keyword, name), each
    for keyword in _LISTED:
        listed = schema.get(keyword)
        for index, each in enumerate(listed or ()):
            yield (keyword, str(index)), each
    for keyword in _SINGLE:
        if isinstance(schema.get(keyword), dict):
            yield (keyword,), schema[keyword]


def join_path(path: str, keys: tuple[str, ...]) -> str:
    """``path`` and ``keys`` as errors name it: ``schema.properties.a.anyOf[1]``."""
    for key in keys:
        path += f"[{key}]" if key.isdecimal() else f".{key}"
    return path


def _prepared(schema: Any, path: str, *, depth: int) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise _refusal(path, "is no schema; an object, true or false is needed")
    if depth > MAX_DEPTH:
        raise _refusal(path, f"is nested deeper than {MAX_DEPTH} schemas, the limit")
    _check_keywords(schema, path)
    decider = next((keyword for keyword in _DECIDERS if keyword in schema), None)
    made = dict(schema)
    if decider is not None:
        _check_decider(schema, decider, path)
    else:
        made = _with_type(made, path)
        _check_types(made, path)
        if "object" in _types_of(made):
            made = _closed(made, path)
    for keyword in (*_NAMED, *_LISTED):
        if keyword in made:
            made[keyword] = made[keyword].copy()
    for keys, each in subschemas(made):
        _put(made, keys, _prepared(each, join_path(path, keys), depth=depth + 1))
    return made


def _check_keywords(schema: dict[str, Any], path: str) -> None:
    for keyword, value in schema.items():
        shape = _SHAPES.get(keyword)
        if shape is not None and not isinstance(value, shape):
            names = " or ".join(_SHAPE_NAMES[each] for each in shape)
            raise _refusal(f"{path}.{keyword}", f"must be {names}")
        if keyword in _IGNORED and not (keyword == "uniqueItems" and value is False):
            raise _refusal(f"{path}.{keyword}", "cannot be held while generating; leave it out")
    for where, pattern in _patterns(schema, path):
        if _UNHELD_IN_PATTERNS.search(pattern):
            raise _refusal(
                where,
                "has a part that cannot be held: quotes, backslashes and control characters (which "
                "JSON escapes), groups other than (...) and (?:...), and back references",
            )


def _patterns(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    if "pattern" in schema:
        yield f"{path}.pattern", schema["pattern"]
    for pattern in schema.get("patternProperties", ()):
        yield f"{path}.patternProperties", pattern


def _check_decider(schema: dict[str, Any], decider: str, path: str) -> None:
    """Only ``type`` may stand beside ``const`` and ``enum``, where every value has it."""
    value = schema[decider]
    beside = sorted(_ASSERTIONS & schema.keys()) + [
        keyword for keyword in _DECIDERS if keyword in schema and keyword != decider
    ]
    if decider in {"const", "enum"} and beside == ["type"]:
        for each in [value] if decider == "const" else value:
            if not any(_has_type(each, name) for name in _types_of(schema)):
                raise _refusal(f"{path}.{decider}", "has a value that is not of the type beside it")
        beside = []
    if beside:
        raise _refusal(f"{path}.{beside[0]}", f"cannot be held beside {decider}; write it inside")
    if decider == "$ref" and not (isinstance(value, str) and re.match(r"#(/|$)", value)):
        raise _refusal(f"{path}.$ref", 'must point into the schema itself: "#/$defs/name"')
    if decider == "allOf" and not (isinstance(value, list) and len(value) == 1):
        raise _refusal(f"{path}.allOf", "can be held with exactly one schema; merge them")


def _with_type(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """``schema`` with the type that its keywords speak of, where it names none."""
    if "type" in schema:
        return schema
    kinds = {"object": _OBJECT, "array": _ARRAY, "string": _STRING, "number": _NUMBER}
    found = [name for name, keywords in kinds.items() if keywords & schema.keys()]
    if len(found) > 1:
        raise _refusal(path, f"has keywords of {' and '.join(found)}; name the type")
    return {**schema, "type": found[0]} if found else schema


def _check_types(schema: dict[str, Any], path: str) -> None:
    types = _types_of(schema)
    if "type" in schema and not (types and all(name in _TYPES for name in map(str, types))):
        raise _refusal(f"{path}.type", f"must be of {', '.join(_TYPES)}, or a list of them")
    if "number" in types and "multipleOf" in schema:
        raise _refusal(f"{path}.multipleOf", "can be held for integers only")
    bounds = sorted(_NUMBER & schema.keys() - {"multipleOf"})
    if bounds and "multipleOf" in schema:
        raise _refusal(f"{path}.{bounds[0]}", "cannot be held beside multipleOf")
    if "format" in schema and schema["format"] not in _FORMATS:
        raise _refusal(f"{path}.format", f"must be one of {', '.join(sorted(_FORMATS))}")
    lengths = [keyword for keyword in ("minLength", "maxLength") if keyword in schema]
    rules = [keyword for keyword in ("pattern", "format") if keyword in schema] + lengths
    if len(rules) > 1 and rules != lengths:
        raise _refusal(f"{path}.{rules[1]}", f"cannot be held beside {rules[0]}")


def _closed(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """``schema`` without other properties than it lists, unless it says that there may be more."""
    listed = schema.get("properties", {})
    others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    has_others = others is not None and others is not False
    for keyword in ("patternProperties", "propertyNames"):
        if keyword in schema and (listed or has_others):
            raise _refusal(f"{path}.{keyword}", "cannot be held beside other properties")
    if has_others:
        for name in filter(_needs_escapes, listed):
            raise _refusal(
                f"{path}.properties.{name}",
                "cannot be held beside other properties: JSON writes its name with escapes",
            )
    for name in schema.get("required", []):
        if name not in listed:
            raise _refusal(f"{path}.required", f"names {name!r}, which properties does not list")
    made = {key: value for key, value in schema.items() if key not in _OTHERS}
    if "patternProperties" not in schema and (others is not None or "properties" in schema):
        made["additionalProperties"] = others or False
    return made


def _needs_escapes(name: str) -> bool:
    """Other properties may not have this name as it is; xgrammar knows no other form of it."""
    return json.dumps(name, ensure_ascii=False) != f'"{name}"'


def _types_of(schema: dict[str, Any]) -> list[Any]:
    named = schema.get("type", [])
    return named if isinstance(named, list) else [named]


def _has_type(value: Any, name: Any) -> bool:
    wanted = _TYPES.get(name) if isinstance(name, str) else None
    if wanted is None or (isinstance(value, bool) and name != "boolean"):
        return False
    return isinstance(value, wanted) or (
        name == "integer" and isinstance(value, float) and value.is_integer()
    )


def _put(schema: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    """Replace the subschema at ``keys``."""
    keyword, *rest = keys
    if not rest:
        schema[keyword] = value
    elif isinstance(schema[keyword], dict):
        schema[keyword][rest[0]] = value
    else:
        schema[keyword][int(rest[0])] = value


def _refusal(path: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {why}", param=path)
