"""Bounds of structured outputs and vocabularies: one check for render and for generate's door."""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from triptych.errors import InvalidRequestError
from triptych.json_schema import prepared
from triptych.wire import StructuredOutputs, Vocabulary

#: Characters of a schema, pattern, grammar, or of all choices together.
MAX_CHARS = 128 * 1024
#: The same of a structural tag, which holds the schemas of calls that may be repeated twice.
MAX_TAG_CHARS = 2 * MAX_CHARS
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_UNSERVED = ("disable_additional_properties", "whitespace_pattern")


def check_structured(
    outputs: StructuredOutputs, path: str, places: Mapping[str, str] | None = None
) -> None:
    """Refuse what cannot be held, before anything is compiled.

    Args:
        outputs: what was asked.
        path: where it was asked, for errors.
        places: where a kind was asked, if not at its name below ``path``.

    Raises:
        InvalidRequestError: not exactly one kind, too long, or a schema that would not be held;
            ``param`` is the place.
    """
    for name in _UNSERVED:
        if getattr(outputs, name):
            raise InvalidRequestError(
                f"{path}.{name} is not supported: leave it out", param=f"{path}.{name}"
            )
    kind = kind_of(outputs, path)
    where = (places or {}).get(kind, f"{path}.{kind}")
    if kind == "choice" and not (outputs.choice and all(outputs.choice)):
        raise InvalidRequestError(f"{where} must hold texts, each not empty", param=where)
    num_chars = sum(map(len, outputs.choice or [text_of(outputs, kind)]))
    limit = MAX_TAG_CHARS if kind == "structural_tag" else MAX_CHARS
    if num_chars > limit:
        raise InvalidRequestError(
            f"{where} has {num_chars:,} characters, limit is {limit:,}", param=where
        )
    if kind == "json":
        prepared(schema_of(outputs, where), where)
    if kind == "structural_tag":
        prepared_tag(outputs, where)


def kind_of(outputs: StructuredOutputs, path: str) -> str:
    """The one kind that is set.

    Raises:
        InvalidRequestError: none or several are.
    """
    values = {kind: getattr(outputs, kind) for kind in KINDS}
    given = [kind for kind, value in values.items() if value is not None and value is not False]
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise InvalidRequestError(
            f"{path} must hold exactly one of {', '.join(KINDS)}; it holds {found}", param=path
        )
    return given[0]


def text_of(outputs: StructuredOutputs, kind: str) -> str:
    """The source text of a kind; a schema given as an object is written as JSON."""
    value = getattr(outputs, kind)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def schema_of(outputs: StructuredOutputs, path: str) -> Any:
    """The JSON schema as decoded JSON.

    Raises:
        InvalidRequestError: it is text and not JSON.
    """
    if not isinstance(outputs.json, str):
        return outputs.json
    try:
        return msgspec.json.decode(outputs.json)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{path} is not valid JSON: {error}", param=path) from error


def prepared_tag(outputs: StructuredOutputs, path: str) -> tuple[Any, list[tuple[str, Any]]]:
    """The structural tag as decoded JSON with its schemas prepared; and these, with their places.

    A schema's place is its ``$comment``, where it has one: render notes there which part of the
    request it comes from.

    Raises:
        InvalidRequestError: it is not JSON, or a schema in it would not be held.
    """
    schemas: list[tuple[str, Any]] = []
    try:
        tag = msgspec.json.decode(outputs.structural_tag or "")
        return _with_prepared_schemas(tag, path, schemas), schemas
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{path} is not valid JSON: {error}", param=path) from error


def _with_prepared_schemas(part: Any, path: str, schemas: list[tuple[str, Any]]) -> Any:
    if isinstance(part, list):
        return [_with_prepared_schemas(each, path, schemas) for each in part]
    if not isinstance(part, dict):
        return part
    made = {
        key: _with_prepared_schemas(value, path, schemas)
        for key, value in part.items()
        if key != "json_schema"
    }
    if "json_schema" in part:
        schema = part["json_schema"]
        comment = schema.get("$comment") if isinstance(schema, dict) else None
        place = comment if isinstance(comment, str) else path
        made["json_schema"] = prepared(schema, place)
        schemas.append((place, made["json_schema"]))
    return made


def make_vocabulary(fingerprint: str, tokens: list[bytes]) -> Vocabulary:
    return Vocabulary(fingerprint=fingerprint, tokens=tokens, sha256=digest_of(tokens))


def digest_of(tokens: Iterable[bytes]) -> str:
    """sha256 in hex of the tokens in order, each after its length (uint32, little-endian)."""
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(struct.pack("<I", len(token)))
        digest.update(token)
    return digest.hexdigest()
