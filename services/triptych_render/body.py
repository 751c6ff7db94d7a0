"""A stranger's JSON body to a validated pydantic model, with one-line errors that name the path."""

from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from triptych.errors import InvalidRequestError

_ModelT = TypeVar("_ModelT", bound=BaseModel)


class StrictBody(BaseModel):
    """Base of the request models: no coercion (``"5"`` is no integer), unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=())


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body`` without its null fields: null means absent everywhere.

    Raises:
        InvalidRequestError: not JSON, or not an object.
    """
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequestError("the body is nested too deeply") from error
    if not isinstance(decoded, dict):
        raise InvalidRequestError(f"the body must be a JSON object, got {describe(decoded)}")
    return {name: value for name, value in decoded.items() if value is not None}


def validate(fields: dict[str, Any], model: type[_ModelT]) -> _ModelT:
    """``fields`` as ``model``.

    Raises:
        InvalidRequestError: the first wrong field by its path, and how many more there are.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _first_problem(error, fields) from error


def describe(value: Any) -> str:
    """What a value is, without repeating text of the request."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value) if abs(value) < 1e15 else "a large number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


def _first_problem(error: ValidationError, fields: dict[str, Any]) -> InvalidRequestError:
    problems = error.errors(include_url=False, include_context=False)
    paths = [_path(problem, fields) for problem in problems]
    first, path = problems[0], paths[0]
    num_more = len(set(paths)) - 1
    names_kind = first["type"].endswith(("_type", "_equal"))
    got = f", got {describe(first['input'])}" if names_kind else ""
    more = f" (and {num_more} more wrong fields)" if num_more else ""
    return InvalidRequestError(f"{path}: {first['msg']}{got}{more}", param=path)


def _path(problem: ErrorDetails, fields: dict[str, Any]) -> str:
    """The path in the client's own words: ``messages[0].content[1].text``.

    pydantic's location also holds the names of union members, which are no part of the body:
    whatever is not found there is left out, unless it is what is missing.
    """
    path = ""
    value: Any = fields
    for position, part in enumerate(problem["loc"]):
        is_missing = problem["type"] == "missing" and position == len(problem["loc"]) - 1
        if isinstance(value, list) and isinstance(part, int):
            path += f"[{part}]"
            value = value[part]
        elif isinstance(value, dict) and (part in value or is_missing):
            path += f".{part}" if path else str(part)
            value = value.get(part)
    return path
