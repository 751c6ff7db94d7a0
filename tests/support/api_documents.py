"""The services' OpenAPI documents, and validators of their schemas."""

from functools import cache
from importlib import resources
from typing import Any

import msgspec
from jsonschema import Draft202012Validator


@cache
def document(service: str) -> dict[str, Any]:
    file = resources.files("triptych") / "openapi" / f"{service}.json"
    made: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    return made


@cache
def validator(service: str, name: str) -> Draft202012Validator:
    """Of the schema ``name`` in the document of ``service``."""
    components = document(service)["components"]
    schema = {"$ref": f"#/components/schemas/{name}", "components": components}
    return Draft202012Validator(schema)
