"""``response_format``, ``structured_outputs`` and ``guided_*``: what the output must match.

The first is OpenAI's, the second vLLM's, the last are vLLM's former names. All that can be said of
a request without compiling its grammar is said here, in the words of the request.
"""

from typing import Any, Literal

import msgspec
from pydantic import Field

from triptych.errors import InvalidRequestError
from triptych.structured import check_structured
from triptych.wire import StructuredOutputs
from triptych_render.body import StrictBody

#: Former field -> the kind of structured output that it is.
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


class JsonSchemaField(StrictBody):
    """OpenAI's ``json_schema``. The schema is always held; ``strict`` changes nothing."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_object: dict[str, Any] = Field(alias="schema")


class ResponseFormat(StrictBody):
    """OpenAI's ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaField | None = None


class StructuredFields(StrictBody):
    """The fields of a request that say what the output must match; at most one may be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


def structured_outputs(request: StructuredFields) -> StructuredOutputs | None:
    """What the output of ``request`` must match; None where it may be anything.

    Raises:
        InvalidRequestError: several fields ask for something, or one for what cannot be held;
            ``param`` names the place.
    """
    asked: dict[str, StructuredOutputs] = {}
    places: dict[str, str] = {}
    if request.response_format is not None and request.response_format.type != "text":
        asked["response_format"] = _of_response_format(request.response_format)
        places["json"] = "response_format.json_schema.schema"
    if request.structured_outputs is not None:
        asked["structured_outputs"] = _of_structured_outputs(request.structured_outputs)
    for name, kind in _GUIDED.items():
        value = getattr(request, name)
        if value is not None:
            fields: dict[str, Any] = {kind: value}
            asked[name] = StructuredOutputs(**fields)
            places[kind] = name
    if len(asked) > 1:
        raise InvalidRequestError(
            f"{' and '.join(asked)} are set; only one of them can be", param=list(asked)[1]
        )
    for name, outputs in asked.items():
        check_structured(outputs, name, places)
        return outputs
    return None


def _of_response_format(given: ResponseFormat) -> StructuredOutputs:
    if given.type == "json_object":
        return StructuredOutputs(json_object=True)
    if given.json_schema is None:
        raise InvalidRequestError(
            "response_format.json_schema is missing; type json_schema needs it",
            param="response_format.json_schema",
        )
    return StructuredOutputs(json=given.json_schema.schema_object)


def _of_structured_outputs(given: dict[str, Any]) -> StructuredOutputs:
    if given.get("structural_tag") is not None:
        raise InvalidRequestError(
            "structured_outputs.structural_tag is not supported: leave it out",
            param="structured_outputs.structural_tag",
        )
    set_fields = {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(set_fields, StructuredOutputs)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        path = "structured_outputs" + place.rstrip("`")
        raise InvalidRequestError(f"{path}: {message}", param=path) from error
