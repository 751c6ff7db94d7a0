"""Exchanges with the panels' own JSON endpoints: render, generate, derender."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from triptych.client.calls import Call, as_messages, chat_body, completion_body, reader
from triptych.client.fields import ChatFields, CompletionFields, Messages, Prompt
from triptych.client.replies import ChatReply, Completion
from triptych.client.scores import float32_values
from triptych.json_bodies import GenerateChunk, GenerateResponse, encode_generate_response
from triptych.logprobs import Logprobs
from triptych.wire import Generated, GenerateDelta, GenerateRequest

_AnswerT = TypeVar("_AnswerT", Generated, GenerateDelta)

_GENERATE = "/inference/v1/generate"


def render_chat(messages: Messages, fields: ChatFields) -> Call[GenerateRequest]:
    body = chat_body(messages, fields)
    return Call("/v1/chat/completions/render", reader(GenerateRequest), body)


def render_completion(prompt: Prompt, fields: CompletionFields) -> Call[list[GenerateRequest]]:
    body = completion_body(prompt, fields)
    return Call("/v1/completions/render", reader(list[GenerateRequest]), body)


def generate(request: GenerateRequest) -> Call[Generated]:
    read = reader(GenerateResponse)

    def read_answer(data: bytes) -> Generated:
        answer = read(data).to_generated(
            prompt_tokens=request.prompt_len,
            prompt_token_ids=request.token_ids[: request.prompt_len],
        )
        return _exact(answer)

    return Call(_GENERATE, read_answer, _generate_body(request, is_stream=False))


def stream_generate(request: GenerateRequest) -> Call[GenerateDelta]:
    read: Callable[[bytes], GenerateChunk] = reader(GenerateChunk)

    def read_event(data: bytes) -> GenerateDelta:
        return _exact(read(data).to_delta(request.token_ids[: request.prompt_len]))

    return Call(_GENERATE, read_event, _generate_body(request, is_stream=True))


def derender_chat(answer: Generated, messages: Messages, fields: ChatFields) -> Call[ChatReply]:
    body = {
        "generate_response": _raw(answer),
        "prompt_token_ids": answer.prompt_token_ids,
        "chat_request": {**fields, "messages": as_messages(messages)},
    }
    return Call("/v1/chat/completions/derender", reader(ChatReply), msgspec.json.encode(body))


def derender_completion(
    answers: Sequence[Generated], prompt: Prompt, fields: CompletionFields
) -> Call[Completion]:
    prompts = [answer.prompt_token_ids for answer in answers]
    body = {
        "generate_responses": [_raw(answer) for answer in answers],
        "prompt_token_ids": prompts if all(prompts) else None,
        "completion_request": {**fields, "prompt": prompt},
    }
    return Call("/v1/completions/derender", reader(Completion), msgspec.json.encode(body))


def _generate_body(request: GenerateRequest, *, is_stream: bool) -> bytes:
    """JSON of ``request`` for a server of ours, without usage, which deltas do not have."""
    asked: Any = msgspec.structs.replace(request, stream=is_stream, stream_options=None)
    return msgspec.json.encode(asked)


def _exact(given: _AnswerT) -> _AnswerT:
    """``given`` with the float32 values that JSON's texts stand for: those that gRPC gives."""
    choices = [
        msgspec.structs.replace(choice, logprobs=_exact_columns(choice.logprobs))
        for choice in given.choices
    ]
    return msgspec.structs.replace(
        given, choices=choices, prompt_logprobs=_exact_columns(given.prompt_logprobs)
    )


def _exact_columns(columns: Logprobs | None) -> Logprobs | None:
    if columns is None:
        return None
    return msgspec.structs.replace(columns, logprobs=float32_values(columns.logprobs))


def _raw(answer: Generated) -> msgspec.Raw:
    return msgspec.Raw(encode_generate_response(answer))
