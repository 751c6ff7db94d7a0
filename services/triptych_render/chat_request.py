"""Models of chat requests: everything that the ``openai`` client can send, and vLLM's extensions.

Messages are typed dictionaries that keep unknown keys, because the template, not this service,
decides what it reads from a message.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    with_config,
)
from typing_extensions import TypedDict

from triptych_render.body import StrictBody
from triptych_render.shared_fields import Int32, SharedFields, one_or_list

_KEEP_UNKNOWN_KEYS = ConfigDict(strict=True, extra="allow")


def _as_sent(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """``value`` itself, checked: templates write objects with the keys in the request's order."""
    check(value)
    return value


@with_config(_KEEP_UNKNOWN_KEYS)
class ContentPart(TypedDict):
    """A typed part of a message; ``messages`` refuses the types that are not text."""

    type: str
    text: NotRequired[str | None]
    refusal: NotRequired[str | None]


@with_config(_KEEP_UNKNOWN_KEYS)
class FunctionCall(TypedDict):
    """A call in the history; OpenAI writes ``arguments`` as JSON text."""

    name: str
    arguments: NotRequired[str | dict[str, Any] | None]


@with_config(_KEEP_UNKNOWN_KEYS)
class ToolCall(TypedDict):
    function: FunctionCall
    id: NotRequired[str | None]
    type: NotRequired[str | None]


MessageContent = Annotated[
    Annotated[str | None, Tag("one")] | Annotated[list[ContentPart], Tag("list")],
    Discriminator(one_or_list),
]


@with_config(_KEEP_UNKNOWN_KEYS)
class Message(TypedDict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: NotRequired[MessageContent]
    tool_calls: NotRequired[list[ToolCall] | None]
    tool_call_id: NotRequired[str | None]
    name: NotRequired[str | None]


@with_config(_KEEP_UNKNOWN_KEYS)
class ToolFunction(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]


@with_config(_KEEP_UNKNOWN_KEYS)
class Tool(TypedDict):
    type: Literal["function"]
    function: ToolFunction


class ChatPrompt(StrictBody):
    """What the prompt of a chat is made from; shared by chat, render and tokenize.

    ``add_generation_prompt`` left out means yes, unless the final message is to be continued.
    ``add_special_tokens`` is off because templates write their own BOS.
    """

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1), WrapValidator(_as_sent)]
    tools: Annotated[list[Tool], WrapValidator(_as_sent)] = Field(default_factory=list)
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: str | None = None
    add_special_tokens: bool = False


class ChatRequest(ChatPrompt, SharedFields):
    """``POST /v1/chat/completions``. ``max_tokens`` is OpenAI's old name of the other field."""

    logprobs: bool = False
    max_completion_tokens: Int32 | None = None
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = None
    include_reasoning: bool = True
