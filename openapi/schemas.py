"""JSON schemas of bodies: from pydantic models and msgspec structs, in one form."""

import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

#: A JSON schema, or a part of an OpenAPI document.
Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
_REF = "#/components/schemas/{}"


def ref(name: str) -> Schema:
    return {"$ref": _REF.format(name)}


def nullable(schema: Schema) -> Schema:
    """``schema``, or null."""
    if any(each == NULL for each in schema.get("anyOf", ())):
        return schema
    kept: Schema = {key: schema[key] for key in ("default", "description") if key in schema}
    inner: Schema = {key: value for key, value in schema.items() if key not in kept}
    return {"anyOf": [inner, NULL], **kept}


def read_models(models: Iterable[type[BaseModel]]) -> dict[str, Schema]:
    """Schemas by name of what pydantic ``models`` read, parts included."""
    asked: list[tuple[type[BaseModel], typing.Literal["validation"]]]
    asked = [(model, "validation") for model in models]
    _, found = models_json_schema(asked, ref_template=_REF.format("{model}"))
    schemas: dict[str, Schema] = found["$defs"]
    return {name: _plain(schema) for name, schema in schemas.items()}


def null_means_absent(schema: Schema) -> Schema:
    """A body whose null fields are dropped before it is read: what may be missing may be null."""
    required = schema.get("required", [])
    fields: dict[str, Schema] = schema["properties"]
    made = {name: each if name in required else nullable(each) for name, each in fields.items()}
    return {**schema, "properties": made}


def read_structs(types: Mapping[type[msgspec.Struct], str]) -> dict[str, Schema]:
    """Schemas of what msgspec reads as ``types``, under their names here, parts included."""
    return {name: _plain(schema) for name, schema in _components(types).items()}


def written_structs(types: Mapping[type[msgspec.Struct], str]) -> dict[str, Schema]:
    """Schemas of what msgspec writes for ``types``: every field but the unset ones is there."""
    schemas = {name: _plain(schema) for name, schema in _components(types).items()}
    for struct, name in types.items():
        hints = typing.get_type_hints(struct)
        schemas[name]["required"] = [
            field for field, hint in hints.items() if msgspec.UnsetType not in typing.get_args(hint)
        ]
        for field in schemas[name]["properties"].values():
            field.pop("default", None)
    return schemas


def _components(types: Mapping[type[msgspec.Struct], str]) -> dict[str, Schema]:
    _, found = msgspec.json.schema_components(types, ref_template=_REF.format("{name}"))
    names = {struct.__name__: name for struct, name in types.items()}
    return renamed(found, names)


def renamed(schemas: Mapping[str, Schema], names: Mapping[str, str]) -> dict[str, Schema]:
    """``schemas`` under other ``names``, where there are some, and so in all references."""
    return {names.get(name, name): _renamed(schema, names) for name, schema in schemas.items()}


def _renamed(part: Any, names: Mapping[str, str]) -> Any:
    """``part`` with references to types' own names made references to ``names``."""
    if isinstance(part, list):
        return [_renamed(each, names) for each in part]
    if not isinstance(part, dict):
        return part
    if set(part) == {"$ref"}:
        name = part["$ref"].rpartition("/")[2]
        return ref(names.get(name, name))
    return {key: _renamed(value, names) for key, value in part.items()}


def _plain(schema: Schema) -> Schema:
    """Without titles, which repeat names, and without docstrings, which speak to programmers."""
    schema = {key: value for key, value in schema.items() if key not in {"title", "description"}}
    fields = schema.get("properties", {})
    made = {
        name: {key: value for key, value in each.items() if key != "title"}
        for name, each in fields.items()
    }
    if not schema.get("required", True):
        del schema["required"]
    return {**schema, "properties": made} if made else schema
