"""A service's whole document."""

import tomllib
from pathlib import Path
from typing import Any

from openapi.fields import ALWAYS_NULL, described
from openapi.operations import HEADERS, refusal_responses
from openapi.schemas import NULL, Schema
from openapi.services import ServiceApi

ROOT = Path(__file__).parents[1]
_TAGS = {
    "render": "OpenAI requests to generate requests.",
    "generate": "Token ids to token ids and logprobs.",
    "derender": "Token ids and logprobs to OpenAI replies.",
    "openai": "OpenAI's endpoints.",
    "tokenizer": "Text to token ids and back.",
    "models": "What is served.",
    "operations": "For probes, scrapers and people.",
}


def document(name: str, api: ServiceApi) -> Schema:
    """The OpenAPI document of service ``name``.

    Raises:
        LookupError: a field is not described, or a schema is missing or not used.
    """
    paths = {path: {each.method: each.document()} for path, each in api.operations.items()}
    made: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": f"triptych {name}",
            "summary": api.description,
            "description": _introduction(name),
            "version": version(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server."}],
        "tags": [
            {"name": tag, "description": text}
            for tag, text in _TAGS.items()
            if any(each.tag == tag for each in api.operations.values())
        ],
        "paths": paths,
        "components": {
            "schemas": {name: _described(name, each) for name, each in api.schemas.items()},
            "responses": refusal_responses(),
            "headers": dict(HEADERS),
            "parameters": {"RequestId": _REQUEST_ID},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key of the gateway, or a panel's hop secret. Asked for "
                    "where the server has one; `security` says so then.",
                }
            },
        },
    }
    return _used_alone(made)


def version() -> str:
    """The version in pyproject.toml, its one place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


_REQUEST_ID: Schema = {
    "name": "x-request-id",
    "in": "header",
    "required": False,
    "description": "Names the request in the reply, in logs and over every hop: up to 128 letters, "
    "digits and `._:/+=-`; another id is made instead of anything else.",
    "schema": {"type": "string"},
}


def _introduction(name: str) -> str:
    lens = " [The lens](lens/) shows an answer's probabilities." if name == "gateway" else ""
    return (
        "Fields that a schema does not name are ignored. Integers are written without a fraction. "
        "The served model, its vocabulary, its context and the server's flags bound some values "
        f"more than the schemas do; an error names the limit and the value.{lens}"
    )


def _described(body: str, schema: Schema) -> Schema:
    """``schema`` with a description of each field."""
    if "properties" not in schema:
        return schema
    fields = {
        name: each if "description" in each else {**each, "description": _text(body, name, each)}
        for name, each in schema["properties"].items()
    }
    return {**schema, "properties": fields}


def _text(body: str, name: str, schema: Schema) -> str:
    return ALWAYS_NULL if _is_null(schema) else described(body, name)


def _is_null(schema: Schema) -> bool:
    return {key: value for key, value in schema.items() if key != "default"} == NULL


def _used_alone(made: Schema) -> Schema:
    """``made`` without components that nothing refers to.

    Raises:
        LookupError: something refers to one that is not there.
    """
    components = made["components"]
    found: set[str] = set()
    ahead = list(_references(made["paths"]))
    while ahead:
        place = ahead.pop()
        if place in found:
            continue
        found.add(place)
        _, _, group, name = place.split("/")
        if name not in components[group]:
            raise LookupError(f"{place} is nowhere")
        ahead += _references(components[group][name])
    for group in ("schemas", "responses", "headers", "parameters"):
        kept = components[group].items()
        components[group] = {
            name: each for name, each in kept if f"#/components/{group}/{name}" in found
        }
    return made


def _references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [found for each in part for found in _references(each)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
    return own + [found for each in part.values() for found in _references(each)]
