"""Exchanges over HTTP, prepared and read without I/O: what both clients send."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from triptych.client.fields import (
    ChatFields,
    CompletionFields,
    Messages,
    Prompt,
    TemplateFields,
)
from triptych.client.replies import ChatChunk, ChatReply, Completion, ServedModel, Tokens
from triptych.errors import InternalError
from triptych.wire import StreamOptions

_T = TypeVar("_T")

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One exchange. ``body``: JSON to post; None: a GET. ``read``: what an answer's body means.

    Of a stream ``read`` gets the data of one event at a time.
    """

    path: str
    read: Callable[[bytes], _T]
    body: bytes | None = None

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


#: Several exchanges: yields each call, is sent its answer, and returns the result.
Plan: TypeAlias = Generator[Call[Any], Any, _T]


class _Models(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ServedModel]


class _Text(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


def reader(kind: type[_T]) -> Callable[[bytes], _T]:
    """Decodes JSON as ``kind``; what is something else is an InternalError."""

    def read(data: bytes) -> _T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise InternalError(f"the server's answer cannot be read: {error}") from error

    return read


def chat(messages: Messages, fields: ChatFields) -> Call[ChatReply]:
    return Call(_CHAT, reader(ChatReply), chat_body(messages, fields))


def stream_chat(messages: Messages, fields: ChatFields) -> Call[ChatChunk]:
    return Call(_CHAT, reader(ChatChunk), chat_body(messages, fields, is_stream=True))


def complete(prompt: Prompt, fields: CompletionFields) -> Call[Completion]:
    return Call(_COMPLETIONS, reader(Completion), completion_body(prompt, fields))


def stream_complete(prompt: Prompt, fields: CompletionFields) -> Call[Completion]:
    body = completion_body(prompt, fields, is_stream=True)
    return Call(_COMPLETIONS, reader(Completion), body)


def tokenize(prompt: str, *, add_special_tokens: bool) -> Call[Tokens]:
    body = {"prompt": prompt, "add_special_tokens": add_special_tokens, "return_token_strs": True}
    return Call("/tokenize", reader(Tokens), msgspec.json.encode(body))


def tokenize_chat(messages: Messages, fields: TemplateFields) -> Call[Tokens]:
    body = {**fields, "messages": as_messages(messages), "return_token_strs": True}
    return Call("/tokenize", reader(Tokens), msgspec.json.encode(body))


def detokenize(token_ids: Sequence[int]) -> Call[str]:
    read = reader(_Text)
    body = msgspec.json.encode({"tokens": token_ids})
    return Call("/detokenize", lambda data: read(data).prompt, body)


def models() -> Call[list[ServedModel]]:
    read = reader(_Models)
    return Call("/v1/models", lambda data: read(data).data)


def chat_body(messages: Messages, fields: ChatFields, *, is_stream: bool = False) -> bytes:
    return _encode({**fields, "messages": as_messages(messages)}, is_stream=is_stream)


def completion_body(prompt: Prompt, fields: CompletionFields, *, is_stream: bool = False) -> bytes:
    return _encode({**fields, "prompt": prompt}, is_stream=is_stream)


def as_messages(messages: Messages) -> Any:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def _encode(body: Mapping[str, Any], *, is_stream: bool) -> bytes:
    """JSON of ``body``; a stream has its usage in the end unless the caller says otherwise."""
    if is_stream:
        body = {"stream_options": StreamOptions(include_usage=True), **body, "stream": True}
    return msgspec.json.encode(body)
