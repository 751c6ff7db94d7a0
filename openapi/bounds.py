"""What the readers check beside types: bounds, out of the constants that the checks use."""

import math
from collections.abc import Mapping
from typing import Any

from openapi.schemas import NULL, Schema
from triptych.reply import MAX_STOP_STRINGS, MAX_STRING_CHARS
from triptych.sampling import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_TOKEN_IDS,
    RANGES,
    Limits,
    Range,
)
from triptych.structured import MAX_CHARS, MAX_TAG_CHARS
from triptych.wire import MAX_TOKEN_ID
from triptych_derender.checks import MAX_CHOICES
from triptych_generate.grammars import MAX_FINGERPRINT_CHARS

#: Above it there is no token in any vocabulary; a deployment's own is smaller.
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID - 1}
MAX_N = Limits(vocab_size=1, max_model_len=1).max_n
_STRING: Schema = {"type": "string", "maxLength": MAX_STRING_CHARS}
_STOP: Schema = {"maxLength": MAX_STRING_CHARS, "maxItems": MAX_STOP_STRINGS, "items": _STRING}
_NOT_BLANK = r"[^\s\x1c-\x1f\x85]"
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_KIND_OF = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), "string"),
    **dict.fromkeys(("minItems", "maxItems", "items"), "array"),
    **dict.fromkeys(("propertyNames", "additionalProperties"), "object"),
}


def _range(allowed: Range) -> Schema:
    least = "exclusiveMinimum" if allowed.is_open else "minimum"
    made: Schema = {least: allowed.least}
    if allowed.most != math.inf:
        made["maximum"] = allowed.most
    return made


def ids(most: int | None = None, *, least: int = 0) -> Schema:
    made: Schema = {"items": TOKEN_ID}
    if least:
        made["minItems"] = least
    return made if most is None else {**made, "maxItems": most}


#: Of sampling fields, under whatever name a body has them.
SAMPLING: Mapping[str, Schema] = {
    **{name: _range(allowed) for name, allowed in RANGES.items()},
    "n": {"minimum": 1, "maximum": MAX_N},
    "logprobs": {"minimum": -1},
    "prompt_logprobs": {"minimum": -1},
    "stop_token_ids": ids(MAX_STOP_TOKEN_IDS),
    "logprob_token_ids": ids(MAX_LOGPROB_TOKEN_IDS),
    "allowed_token_ids": ids(least=1),
    "logit_bias": {
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": {
            "type": "number",
            "minimum": -MAX_LOGIT_BIAS,
            "maximum": MAX_LOGIT_BIAS,
        },
    },
}
WIRE: Mapping[str, Schema] = {
    **SAMPLING,
    "bad_words_token_ids": {
        "maxItems": MAX_BAD_WORDS,
        "items": {"type": "array", **ids(least=1)},
    },
    # they need text; empty ones ask for nothing
    "stop": {"maxLength": 0, "maxItems": 0},
    "bad_words": {"maxItems": 0},
}
GENERATE: Mapping[str, Schema] = {
    "token_ids": ids(least=1),
    "resume_from": {"minimum": 0},
    "choice_index": {"minimum": 0, "maximum": MAX_N - 1},
}
ASKED: Mapping[str, Schema] = {
    **SAMPLING,
    "top_logprobs": {"minimum": -1},
    "stop": _STOP,
    "bad_words": {"maxItems": MAX_BAD_WORDS // 2, "items": {**_STRING, "pattern": _NOT_BLANK}},
    "logit_bias": {
        **SAMPLING["logit_bias"],
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    },
    "guided_json": {"maxLength": MAX_CHARS},
    "guided_regex": {"maxLength": MAX_CHARS},
    "guided_grammar": {"maxLength": MAX_CHARS},
    "guided_choice": {"minItems": 1, "items": {"type": "string", "minLength": 1}},
}
ASKED_CHAT: Mapping[str, Schema] = {
    **ASKED,
    "max_tokens": {"minimum": 1},
    "max_completion_tokens": {"minimum": 1},
}
STRUCTURED: Mapping[str, Schema] = {
    "json": {"maxLength": MAX_CHARS},
    "regex": {"maxLength": MAX_CHARS},
    "grammar": {"maxLength": MAX_CHARS},
    "structural_tag": {"maxLength": MAX_TAG_CHARS},
    "choice": {"minItems": 1, "items": {"type": "string", "minLength": 1}},
    "disable_additional_properties": {"const": False},
    "whitespace_pattern": {"maxLength": 0},
}
DETOKENIZE: Mapping[str, Schema] = {"tokens": ids()}
VOCABULARY: Mapping[str, Schema] = {
    "fingerprint": {"minLength": 1, "maxLength": MAX_FINGERPRINT_CHARS},
    "sha256": {"pattern": "^[0-9a-f]{64}$"},
    "tokens": {"items": {"type": "string", "contentEncoding": "base64", "pattern": _BASE64}},
}
CHOICE: Mapping[str, Schema] = {"index": {"maximum": MAX_CHOICES - 1}}
#: What derender reads of an OpenAI request.
REPLY: Mapping[str, Schema] = {"n": {"minimum": 1, "maximum": MAX_CHOICES}, "stop": _STOP}


def bounded(schema: Schema, bounds: Mapping[str, Schema]) -> Schema:
    """``schema`` with ``bounds`` on those of its fields that it has."""
    fields = schema["properties"]
    made = {name: narrowed(each, bounds.get(name, {})) for name, each in fields.items()}
    return {**schema, "properties": made}


def narrowed(schema: Schema, bounds: Schema) -> Schema:
    """``schema`` with each keyword of ``bounds`` in the branches whose type it speaks of."""
    for several in ("anyOf", "oneOf"):
        if several in schema:
            branches = [narrowed(each, bounds) for each in schema[several]]
            return {**schema, several: branches}
    return schema if schema == NULL else {**schema, **_fitting(schema.get("type"), bounds)}


def _fitting(kind: Any, bounds: Schema) -> Schema:
    kind = "number" if kind == "integer" else kind
    return {key: value for key, value in bounds.items() if _KIND_OF.get(key, kind) == kind}
