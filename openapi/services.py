"""What each service offers, and the schemas of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from openapi import examples, replies, requests
from openapi.operations import WITH_BODY, Operation, common, tokenizer
from openapi.schemas import Schema, ref

#: Answers of the gateway tell a key's limits.
_LIMITED = (
    "x-request-id",
    *(
        f"x-ratelimit-{what}-{of}"
        for of in ("requests", "tokens")
        for what in ("limit", "remaining", "reset")
    ),
)
_GATEWAY_MORE = (429, 504)


@dataclass(frozen=True, slots=True)
class ServiceApi:
    """One service's document, before it is put together."""

    description: str
    operations: Mapping[str, Operation]
    schemas: Mapping[str, Schema]


_COMMON_SCHEMAS = {**replies.errors(), **replies.models()}


def render() -> ServiceApi:
    operations = {
        "/v1/chat/completions/render": Operation(
            id="render_chat",
            tag="render",
            summary="A chat request as a generate request",
            body="ChatRequest",
            examples=examples.CHAT,
            answer=ref("GenerateRequest"),
            refusals=WITH_BODY,
        ),
        "/v1/completions/render": Operation(
            id="render_completion",
            tag="render",
            summary="A completions request, one generate request for each prompt",
            body="CompletionRequest",
            examples=examples.COMPLETION,
            answer={"type": "array", "items": ref("GenerateRequest"), "minItems": 1},
            refusals=WITH_BODY,
        ),
        **tokenizer(),
        **common(),
    }
    written = requests.generate_requests()
    written["WireStructuredOutputs"] = written.pop("StructuredOutputs")
    made = {"GenerateRequest": written["GenerateRequest"]}
    params = written["SamplingParams"]
    structured = {"structured_outputs": ref("WireStructuredOutputs")}
    params = {**params, "properties": {**params["properties"], **structured}}
    made |= {
        "SamplingParams": params,
        "WireStructuredOutputs": written["WireStructuredOutputs"],
    }
    return ServiceApi(
        "OpenAI requests in, token ids and integer sampling parameters out.",
        operations,
        {**requests.openai_requests(), **made, **replies.tokenizer_answers(), **_COMMON_SCHEMAS},
    )


def generate() -> ServiceApi:
    operations = {
        "/inference/v1/generate": Operation(
            id="generate",
            tag="generate",
            summary="Generate; a stream with `stream: true`",
            body="GenerateRequest",
            examples=examples.GENERATE,
            answer=ref("GenerateResponse"),
            events="GenerateEvent",
            refusals=(*WITH_BODY, 409, 429),
        ),
        "/inference/v1/abort_requests": Operation(
            id="abort_requests",
            tag="generate",
            summary="End running requests",
            body="AbortRequest",
            examples={"one": {"request_ids": ["a-request"]}},
            answer=ref("AbortAnswer"),
            refusals=(400, 401, 413, 500),
        ),
        "/inference/v1/vocabularies": Operation(
            id="put_vocabulary",
            tag="generate",
            method="put",
            summary="What a tokenizer's ids mean, once a worker",
            description="The body is what derender's `GET /vocabulary` gives. It is needed before "
            "structured outputs.",
            body="Vocabulary",
            examples=examples.VOCABULARY,
            answer=ref("VocabularyAnswer"),
            refusals=(400, 401, 413, 500, 503),
        ),
        **common(),
    }
    return ServiceApi(
        "Token ids in, token ids and integer logprobs out.",
        operations,
        {**requests.generate_requests(), **replies.generate_answers(), **_COMMON_SCHEMAS},
    )


def derender() -> ServiceApi:
    operations = {
        "/v1/chat/completions/derender": Operation(
            id="derender_chat",
            tag="derender",
            summary="A chat reply, whole or the next chunk",
            body="DerenderChat",
            examples=examples.DERENDER_CHAT,
            answer={"anyOf": [ref("ChatReply"), ref("NextChatChunk")]},
            refusals=WITH_BODY,
        ),
        "/v1/completions/derender": Operation(
            id="derender_completion",
            tag="derender",
            summary="A completions reply, whole or the next chunk",
            body="DerenderCompletion",
            examples=examples.DERENDER_COMPLETION,
            answer={"anyOf": [ref("CompletionReply"), ref("NextCompletionChunk")]},
            refusals=WITH_BODY,
        ),
        "/vocabulary": Operation(
            id="vocabulary",
            tag="derender",
            method="get",
            summary="The bytes of every token id, for generate",
            answer=ref("Vocabulary"),
            refusals=(401, 500),
        ),
        **common(),
    }
    vocabulary = requests.generate_requests()["Vocabulary"]
    return ServiceApi(
        "Token ids and integer logprobs in, OpenAI replies out.",
        operations,
        {
            **requests.derender_requests(),
            **replies.derender_answers(),
            "Vocabulary": vocabulary,
            **_COMMON_SCHEMAS,
        },
    )


def gateway() -> ServiceApi:
    refusals = (*WITH_BODY, 429, 504)
    operations = {
        "/v1/chat/completions": Operation(
            id="chat",
            tag="openai",
            summary="Chat; a stream with `stream: true`",
            body="ChatRequest",
            examples=examples.CHAT,
            answer=ref("ChatReply"),
            events="ChatChunk",
            refusals=refusals,
            headers=_LIMITED,
        ),
        "/v1/completions": Operation(
            id="completions",
            tag="openai",
            summary="Completions; a stream with `stream: true`",
            body="CompletionRequest",
            examples=examples.COMPLETION,
            answer=ref("CompletionReply"),
            events="CompletionChunk",
            refusals=refusals,
            headers=_LIMITED,
        ),
        **tokenizer(_GATEWAY_MORE),
        **common((503, 504)),
    }
    return ServiceApi(
        "OpenAI's chat and completions over render, generate and derender.",
        operations,
        {
            **requests.openai_requests(),
            **replies.chat_replies(),
            **replies.completion_replies(),
            **replies.tokenizer_answers(),
            **_COMMON_SCHEMAS,
        },
    )


SERVICES = {"render": render, "generate": generate, "derender": derender, "gateway": gateway}
