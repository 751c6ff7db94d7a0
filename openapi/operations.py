"""Operations of a document: what each takes, gives and refuses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openapi.schemas import Schema, ref
from triptych.metrics import CONTENT_TYPE

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One status of errors."""

    name: str
    description: str
    headers: tuple[str, ...] = ()


#: As in the tree of ``triptych.errors``.
REFUSALS: Mapping[int, Refusal] = {
    400: Refusal("BadRequest", "The request can never succeed as it is."),
    401: Refusal("Unauthenticated", "A bearer token is needed.", ("www-authenticate",)),
    404: Refusal("NotFound", "There is no such model."),
    409: Refusal("VocabularyNeeded", "The worker lacks the vocabulary: put it, and ask again."),
    413: Refusal("TooLarge", "The body is over the limit."),
    429: Refusal(
        "Overloaded", "There is no room, or the key's limit is used up.", ("retry-after",)
    ),
    500: Refusal("Internal", "A fault of the server."),
    503: Refusal("Unavailable", "It drains, or cannot reach what it needs.", ("retry-after",)),
    504: Refusal("Deadline", "The answer took too long."),
}
#: What every request with a body may get.
WITH_BODY = (400, 401, 404, 413, 500, 503)

HEADERS: Mapping[str, Schema] = {
    "x-request-id": {
        "description": "The request's id, as given or made.",
        "schema": {"type": "string"},
    },
    "retry-after": {
        "description": "Seconds after which to try again.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "www-authenticate": {"description": "Always `Bearer`.", "schema": {"const": "Bearer"}},
    **{
        f"x-ratelimit-{what}-{of}": {
            "description": f"{text} of {of}, where the key has one.",
            "schema": {"type": "string"},
        }
        for what, text in {
            "limit": "The key's limit a minute",
            "remaining": "What is left of the key's limit",
            "reset": "Until then the key's limit is whole again,",
        }.items()
        for of in ("requests", "tokens")
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of a path.

    ``body``, ``answer`` and ``events``: names of schemas; ``events``: of what a stream's events
    hold. ``answers``: several that the answer may be, or another media type's schema. ``is_open``:
    no key is asked for.
    """

    id: str
    tag: str
    summary: str
    description: str = ""
    method: str = "post"
    body: str | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    answer: Schema | None = None
    media_type: str = JSON
    events: str | None = None
    refusals: Sequence[int] = ()
    parameters: Sequence[Schema] = ()
    more: Mapping[str, Schema] = field(default_factory=dict)
    is_open: bool = False
    headers: Sequence[str] = ("x-request-id",)

    def document(self) -> Schema:
        """The operation object."""
        made: Schema = {
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "parameters": [*self.parameters, {"$ref": "#/components/parameters/RequestId"}],
        }
        if self.description:
            made["description"] = self.description
        if self.body is not None:
            made["requestBody"] = {
                "required": True,
                "content": {JSON: {"schema": ref(self.body), "examples": self._examples()}},
            }
        made["responses"] = {"200": self._answer(), **self._refusals(), **self.more}
        if self.is_open:
            made["security"] = []
        return made

    def _examples(self) -> Schema:
        return {
            name: {"summary": name.replace("_", " "), "value": value}
            for name, value in self.examples.items()
        }

    def _answer(self) -> Schema:
        made: Schema = {"description": "Done.", "headers": _headers(self.headers)}
        if self.answer is not None:
            made["content"] = {self.media_type: {"schema": self.answer}}
        if self.events is not None:
            made["content"][EVENTS] = {"schema": _event(self.events)}
        return made

    def _refusals(self) -> Schema:
        return {
            str(status): {"$ref": f"#/components/responses/{REFUSALS[status].name}"}
            for status in self.refusals
        }


def _event(name: str) -> Schema:
    """One server-sent event of a stream, as OpenAPI 3.2 writes them."""
    data: Schema = {
        "type": "string",
        "contentMediaType": JSON,
        "contentSchema": {"anyOf": [ref(name), ref("Error")]},
    }
    return {
        "type": "object",
        "description": f"One event. Its data is a `{name}`; the last one's is `[DONE]`. An error "
        "after the start is one `event: error` whose data is an `Error`, and the stream ends. A "
        "comment line fills 15 seconds of silence.",
        "properties": {
            "data": {"anyOf": [data, {"const": "[DONE]"}]},
            "event": {"enum": ["message", "error"]},  # unnamed ones are messages
        },
        "required": ["data"],
    }


def refusal_responses() -> Schema:
    """The components that operations refer to."""
    return {
        refusal.name: {
            "description": refusal.description,
            "headers": _headers(("x-request-id", *refusal.headers)),
            "content": {JSON: {"schema": ref("Error")}},
        }
        for refusal in REFUSALS.values()
    }


def _headers(names: Sequence[str]) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def common(model_refusals: Sequence[int] = ()) -> dict[str, Operation]:
    """What every service has, by path; ``model_refusals``: where the model has to be asked for."""
    dead: Schema = {"description": "It is not.", "headers": _headers(("x-request-id",))}
    name: Schema = {
        "name": "name",
        "in": "path",
        "required": True,
        "description": "The model's name; it may hold slashes.",
        "schema": {"type": "string", "minLength": 1},
        "example": "smollm2",
    }
    return {
        "/v1/models": Operation(
            id="list_models",
            tag="models",
            method="get",
            summary="The served models",
            answer=ref("Models"),
            refusals=(401, 500, *model_refusals),
        ),
        "/v1/models/{name}": Operation(
            id="get_model",
            tag="models",
            method="get",
            summary="The served model",
            parameters=(name,),
            answer=ref("Model"),
            refusals=(401, 404, 500, *model_refusals),
        ),
        "/health": Operation(
            id="health",
            tag="operations",
            method="get",
            summary="Is the process alive?",
            more={"503": dead},
            is_open=True,
        ),
        "/ready": Operation(
            id="ready",
            tag="operations",
            method="get",
            summary="Can it serve?",
            more={"503": dead},
            is_open=True,
        ),
        "/metrics": Operation(
            id="metrics",
            tag="operations",
            method="get",
            summary="Prometheus metrics",
            answer={"type": "string"},
            media_type=CONTENT_TYPE.partition(";")[0],
            is_open=True,
        ),
        "/version": Operation(
            id="version",
            tag="operations",
            method="get",
            summary="Version of triptych",
            answer=ref("Version"),
            is_open=True,
        ),
    }


def tokenizer(more: Sequence[int] = ()) -> dict[str, Operation]:
    """The tokenizer endpoints of render, which the gateway has too; ``more``: refusals."""
    return {
        "/tokenize": Operation(
            id="tokenize",
            tag="tokenizer",
            summary="Text or messages to token ids",
            body="TokenizeRequest",
            examples={
                "text": {"prompt": "Say hi.", "return_token_strs": True},
                "chat": {"messages": [{"role": "user", "content": "Say hi."}]},
            },
            answer=ref("TokenizeAnswer"),
            refusals=(*WITH_BODY, *more),
        ),
        "/detokenize": Operation(
            id="detokenize",
            tag="tokenizer",
            summary="Token ids to text",
            body="DetokenizeRequest",
            examples={"ids": {"tokens": [40136, 25109, 30]}},
            answer=ref("DetokenizeAnswer"),
            refusals=(*WITH_BODY, *more),
        ),
        "/tokenizer_info": Operation(
            id="tokenizer_info",
            tag="tokenizer",
            method="get",
            summary="What the tokenizer is",
            answer=ref("TokenizerInfo"),
            refusals=(401, 500, 503, *more),
        ),
    }
