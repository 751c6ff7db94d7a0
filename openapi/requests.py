"""Schemas of what the services read."""

from collections.abc import Iterable, Mapping

from openapi import bounds
from openapi.bounds import bounded, ids
from openapi.schemas import (
    NULL,
    Schema,
    null_means_absent,
    nullable,
    read_models,
    read_structs,
    ref,
    renamed,
)
from triptych.json_bodies import GenerateChunk, GenerateResponse, PromptLogprob, ResponseChoice
from triptych.reply import ChatFields, CompletionFields
from triptych.wire import MAX_TOKEN_ID, GenerateRequest, Vocabulary
from triptych_derender.bodies import ChatBody, CompletionBody
from triptych_generate.http import AbortBody
from triptych_render.body import StrictBody
from triptych_render.chat_request import ChatRequest
from triptych_render.completion_request import (
    CompletionRequest,
    DetokenizeRequest,
    TokenizeChat,
    TokenizePrompt,
)
from triptych_render.renderer import MAX_PROMPTS
from triptych_render.template import RESERVED_VARIABLES
from triptych_render.unsupported import CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED, Unsupported

_MODELS: tuple[type[StrictBody], ...] = (
    ChatRequest,
    CompletionRequest,
    TokenizeChat,
    TokenizePrompt,
    DetokenizeRequest,
)
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_NAME: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}},
    "required": ["name"],
}
_TOOL_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {"type": "object", "properties": {"function": _NAME}, "required": ["function"]},
        NULL,
    ],
    "default": "auto",
}
_TEXT: Schema = {"type": "string", "minLength": 1}
_IDS: Schema = {"type": "array", **ids(least=1)}
_OFF: Schema = {"enum": [False, None]}


def openai_requests() -> dict[str, Schema]:
    """The bodies of OpenAI's endpoints and of the tokenizer's, as render reads them."""
    made = renamed(read_models(_MODELS), {"StreamOptionsFields": "StreamOptions"})
    for model in _MODELS:
        made[model.__name__] = null_means_absent(made[model.__name__])
    made |= {
        "StructuredOutputs": _structured_outputs(serves_tags=False),
        "ResponseFormat": _response_format(made["ResponseFormat"]),
        "ContentPart": _content_part(made["ContentPart"]),
        "Message": _message(made["Message"]),
        "ChatRequest": _chat(made["ChatRequest"]),
        "CompletionRequest": _completion(made["CompletionRequest"]),
        "TokenizeChat": _chat_prompt(made["TokenizeChat"]),
        "TokenizePrompt": _with(made["TokenizePrompt"], messages=NULL),
        "TokenizeRequest": {"anyOf": [ref("TokenizeChat"), ref("TokenizePrompt")]},
        "DetokenizeRequest": bounded(made["DetokenizeRequest"], bounds.DETOKENIZE),
    }
    return made


def generate_requests() -> dict[str, Schema]:
    """The bodies that generate reads."""
    made = read_structs(
        {
            GenerateRequest: "GenerateRequest",
            AbortBody: "AbortRequest",
            Vocabulary: "Vocabulary",
        }
    )
    made["StructuredOutputs"] = _structured_outputs(serves_tags=True)
    made["SamplingParams"] = bounded(made["SamplingParams"], bounds.WIRE)
    made["Vocabulary"] = bounded(made["Vocabulary"], bounds.VOCABULARY)
    asks = _where(sampling_params={**_set("structured_outputs"), "type": "object"})
    fingerprint = _where(tokenizer_fingerprint=_TEXT, required=["tokenizer_fingerprint"])
    made["GenerateRequest"] = {
        **bounded(made["GenerateRequest"], bounds.GENERATE),
        "allOf": [{"anyOf": [{"not": asks}, fingerprint]}],
    }
    return made


def derender_requests() -> dict[str, Schema]:
    """The bodies that derender reads: generate's answers, and what it needs of the request."""
    made = read_structs(
        {
            ChatBody: "DerenderChat",
            CompletionBody: "DerenderCompletion",
            ChatFields: "ReplyToChat",
            CompletionFields: "ReplyToCompletion",
            GenerateResponse: "SentResponse",
            GenerateChunk: "SentChunk",
            ResponseChoice: "SentChoice",
            PromptLogprob: "SentPromptLogprob",
        }
    )
    made["SentChoice"] = bounded(made["SentChoice"], bounds.CHOICE)
    made["SentResponse"] = bounded(made["SentResponse"], {"choices": {"minItems": 1}})
    for name in ("SentResponse", "SentChunk"):
        made[name] = _with(made[name], prompt_logprobs=_sent_prompt_logprobs())
    for name in ("ReplyToChat", "ReplyToCompletion"):
        made[name] = bounded(null_means_absent(made[name]), bounds.REPLY)
    made["ReplyToChat"] = _with(made["ReplyToChat"], tool_choice=_TOOL_CHOICE)
    chat, completion = made["DerenderChat"], made["DerenderCompletion"]
    made["DerenderChat"] = {
        **_with(chat, chat_request=nullable(ref("ReplyToChat"))),
        "anyOf": [_CHUNK, {"allOf": [_WHOLE, _set("generate_response")]}],
    }
    several = _where(
        generate_responses={"type": "array", "minItems": 1}, required=["generate_responses"]
    )
    one = {"allOf": [_where(generate_responses=NULL), _set("generate_response")]}
    made["DerenderCompletion"] = {
        **_with(
            completion,
            completion_request=nullable(ref("ReplyToCompletion")),
            prompt_token_ids={
                "anyOf": [
                    {"type": "array", "items": _sent_id()},
                    {"type": "array", "items": {"type": "array", "items": _sent_id()}},
                    NULL,
                ]
            },
        ),
        "anyOf": [_CHUNK, {"allOf": [_WHOLE, {"anyOf": [several, one]}]}],
    }
    return made


def _chat(schema: Schema) -> Schema:
    schema = bounded(_chat_prompt(schema), bounds.ASKED_CHAT)
    schema = _with(schema, tool_choice=_TOOL_CHOICE, **_unserved(CHAT_UNSUPPORTED))
    return _asked(schema, [_required_call()])


def _completion(schema: Schema) -> Schema:
    prompts = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}
    prompt: Schema = {
        "anyOf": [_TEXT, _IDS, {**prompts, "items": _TEXT}, {**prompts, "items": _IDS}]
    }
    schema = bounded(schema, bounds.ASKED)
    schema = _with(schema, prompt=prompt, **_unserved(COMPLETION_UNSUPPORTED))
    nothing = [_where(max_tokens={"minimum": 1}), _where(echo={"const": True}, required=["echo"])]
    return _asked(schema, [{"anyOf": nothing}])


def _asked(schema: Schema, more: list[Schema]) -> Schema:
    """What chat and completions requests have in common; ``more``: rules of one of them."""
    rules = [
        _if_set("top_logprobs", {"enum": [0, None]}, logprobs={"const": True}),
        _if_set("stream_options", NULL, stream={"const": True}),
        {"anyOf": list(_one_structure())},
        *more,
    ]
    asked = _with(schema, structured_outputs=nullable(ref("StructuredOutputs")))
    return {**asked, "allOf": [*asked.get("allOf", ()), *rules]}


def _chat_prompt(schema: Schema) -> Schema:
    variables: Schema = {
        "type": "object",
        "propertyNames": {"not": {"enum": sorted(RESERVED_VARIABLES)}},
    }
    either = [_where(continue_final_message=_OFF), _where(add_generation_prompt=_OFF)]
    made = _with(schema, chat_template_kwargs=nullable(variables))
    return {**made, "allOf": [{"anyOf": either}]}


def _one_structure() -> Iterable[Schema]:
    """At most one field says what the output has to match."""
    text = _where(type={"const": "text"})
    absent: dict[str, Schema] = {"response_format": {"anyOf": [NULL, text]}}
    absent |= dict.fromkeys(("structured_outputs", *_GUIDED), NULL)
    for name in absent:
        yield {"properties": {each: absent[each] for each in absent if each != name}}


def _required_call() -> Schema:
    """A required call needs a tool, and nothing else may say what the answer has to be."""
    others = dict.fromkeys(("structured_outputs", *_GUIDED), NULL)
    held = _where(
        tools={"type": "array", "minItems": 1},
        continue_final_message=_OFF,
        required=["tools"],
        **others,
    )
    return {"anyOf": [_where(tool_choice={"enum": ["none", "auto", None]}), held]}


def _response_format(schema: Schema) -> Schema:
    needs = _where(json_schema={"type": "object"}, required=["json_schema"])
    kinds = _where(type={"enum": ["text", "json_object"]})
    return {**schema, "anyOf": [kinds, needs]}


def _content_part(schema: Schema) -> Schema:
    return {
        **_with(schema, type={"enum": ["text", "refusal"]}),
        "anyOf": [
            _where(type={"const": name}, **{name: {"type": "string"}}, required=[name])
            for name in ("text", "refusal")
        ],
    }


def _message(schema: Schema) -> Schema:
    said = _where(content={"type": ["string", "array"]}, required=["content"])
    return {**schema, "anyOf": [_where(role={"const": "assistant"}), said]}


def _structured_outputs(*, serves_tags: bool) -> Schema:
    (schema,) = (
        schema
        for name, schema in read_structs({GenerateRequest: "GenerateRequest"}).items()
        if name == "StructuredOutputs"
    )
    schema = bounded(schema, bounds.STRUCTURED)
    kinds = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"]
    if not serves_tags:  # a text request: null means absent, and tags are render's own to write
        kinds.remove("structural_tag")
        schema = _with(null_means_absent(schema), structural_tag=NULL)
    asked: dict[str, Schema] = {kind: {"not": NULL} for kind in kinds}
    asked["json_object"] = {"const": True}
    return {**schema, "oneOf": [_where(**{k: asked[k]}, required=[k]) for k in kinds]}


def _unserved(table: Mapping[str, Unsupported]) -> dict[str, Schema]:
    return {
        name: {
            "enum": [*entry.harmless, None],
            "description": f"Not served: {entry.served}.",
        }
        for name, entry in table.items()
    }


def _with(schema: Schema, **fields: Schema) -> Schema:
    return {**schema, "properties": {**schema["properties"], **fields}}


def _where(required: Iterable[str] = (), **fields: Schema) -> Schema:
    """An object whose ``fields``, where they are there, are so."""
    made: Schema = {"properties": fields}
    return {**made, "required": list(required)} if required else made


def _set(name: str) -> Schema:
    """An object where ``name`` is neither missing nor null."""
    return _where(**{name: {"not": NULL}}, required=[name])


def _if_set(name: str, is_off: Schema, **needed: Schema) -> Schema:
    return {"anyOf": [_where(**{name: is_off}), _where(**needed, required=list(needed))]}


def _sent_id() -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}


def _sent_prompt_logprobs() -> Schema:
    position: Schema = {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": ref("SentPromptLogprob"),
    }
    return {"anyOf": [{"type": "array", "items": nullable(position)}, NULL]}


_CHUNK = _set("generate_chunk")
_WHOLE = _where(stream=_OFF, generate_chunk=NULL)
