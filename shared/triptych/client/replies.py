"""OpenAI replies as structs. Fields that are not here are ignored; those that lack are defaults."""

from collections.abc import Iterable

import msgspec

from triptych.wire import Usage


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One token that could stand at a position of a chat answer.

    ``token`` is text, and may be empty where the token ends inside a character; ``bytes`` are the
    token's own (docs/logprobs.md). ``token_id``: None where it is hidden, or other servers' is not
    known.
    """

    token: str
    logprob: float
    bytes: list[int] | None = None
    token_id: int | None = None


class Entry(Candidate, frozen=True, kw_only=True):
    """A sampled token of a chat answer, and the best candidates at its position."""

    top_logprobs: list[Candidate] = []


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The sampled tokens by channel, each in its order."""

    content: list[Entry] | None = None
    reasoning_content: list[Entry] | None = None
    tool_calls: list[Entry] | None = None
    markup: list[Entry] | None = None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """``arguments`` is JSON text as the model wrote it."""

    name: str | None = None
    arguments: str = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call, or what a chunk adds to the one at ``index``."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: CalledFunction


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a chat reply, or what a chunk adds to it."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class _AnyChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatChoice(_AnyChoice, frozen=True, kw_only=True):
    message: ReplyMessage
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(_AnyChoice, frozen=True, kw_only=True):
    delta: ReplyMessage
    logprobs: ChatLogprobs | None = None


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate at a position of the prompt; ``rank`` counts from 1."""

    logprob: float
    rank: int
    decoded_token: str | None = None


#: Per prompt token the candidates by id, its own first; None: no score.
PromptLogprobs = list[dict[int, PromptLogprob] | None]


class _AnyChat(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int = 0
    model: str = ""
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatReply(_AnyChat, frozen=True, kw_only=True):
    choices: list[ChatChoice]
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The content of the first choice."""
        return self.choices[0].message.content or ""


class ChatChunk(_AnyChat, frozen=True, kw_only=True):
    """One event of a chat stream; the last one has usage and no choices."""

    choices: list[ChatChunkChoice]
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """What the content of the first choice gains."""
        return first_text((choice.index, choice.delta.content) for choice in self.choices)


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Four lists of equal length; ``text_offset`` counts code points."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_AnyChoice, frozen=True, kw_only=True):
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A reply of completions, or one event of its stream; the last one has usage alone."""

    id: str
    created: int = 0
    model: str = ""
    choices: list[CompletionChoice]
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The text of the first choice, or what it gains."""
        return first_text((choice.index, choice.text) for choice in self.choices)


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``POST /tokenize``."""

    tokens: list[int]
    count: int
    max_model_len: int = 0
    token_strs: list[str | None] | None = None


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of ``GET /v1/models``; ``max_model_len`` in tokens."""

    id: str
    max_model_len: int | None = None


def first_text(texts: Iterable[tuple[int, str | None]]) -> str:
    """The text of the choice with index 0, empty if it is not there."""
    return next((text for index, text in texts if index == 0 and text), "")
