"""OpenAI messages to the messages that one chat template expects.

Templates agree on roles and text, and differ in three points that a ``MessageStyle`` records:
whether they read text as a string or as typed parts, whether the arguments of a tool call are an
object or JSON text, and how a message that only calls tools says that it has no content.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from triptych.errors import InvalidRequestError
from triptych_render.chat_request import ContentPart, Message, ToolCall

_TEXT_FIELDS = {"text": "text", "refusal": "refusal"}


#: No such key, null, or an empty string.
NoContent = Literal["absent", "null", "empty"]


class MessageStyle(msgspec.Struct, frozen=True, kw_only=True):
    """What a template reads. The defaults are transformers' own conventions."""

    text_as_parts: bool = False
    arguments_as_text: bool = False
    no_content: NoContent = "absent"


def template_messages(
    messages: Sequence[Message], style: MessageStyle, *, has_developer: bool
) -> list[dict[str, Any]]:
    """``messages`` in ``style``; null fields other than content are dropped, as in transformers.

    ``developer`` becomes ``system`` unless ``has_developer``: the template knows that role.

    Raises:
        InvalidRequestError: a part that is not text, or no content where there must be some.
    """
    return [
        _template_message(message, f"messages[{index}]", style, has_developer)
        for index, message in enumerate(messages)
    ]


def _template_message(
    message: Message, path: str, style: MessageStyle, has_developer: bool
) -> dict[str, Any]:
    made: dict[str, Any] = {key: value for key, value in message.items() if value is not None}
    if message["role"] == "developer" and not has_developer:
        made["role"] = "system"
    tool_calls = message.get("tool_calls")
    if tool_calls is not None:
        made["tool_calls"] = [_template_call(call, style) for call in tool_calls]
    text = _text(message, path)
    if text is not None or style.no_content == "empty":
        text = text or ""
        made["content"] = [{"type": "text", "text": text}] if style.text_as_parts else text
    elif style.no_content == "null":
        made["content"] = None
    return made


def _text(message: Message, path: str) -> str | None:
    """The message's text; parts are joined by line ends."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(
            _part_text(part, f"{path}.content[{index}]") for index, part in enumerate(content)
        )
    if content is None and message["role"] != "assistant":
        raise InvalidRequestError(
            f"{path}.content is missing; only an assistant message may have none",
            param=f"{path}.content",
        )
    return content


def _part_text(part: ContentPart, path: str) -> str:
    field = _TEXT_FIELDS.get(part["type"])
    if field is None:
        raise InvalidRequestError(
            f"{path} is of type {part['type'][:40]!r}; only text parts are served here", param=path
        )
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidRequestError(f"{path}.{field}: Field required", param=f"{path}.{field}")
    return text


def _template_call(call: ToolCall, style: MessageStyle) -> dict[str, Any]:
    function: dict[str, Any] = {k: v for k, v in call["function"].items() if v is not None}
    as_wanted = _arguments_text if style.arguments_as_text else _arguments_object
    function["arguments"] = as_wanted(function.get("arguments", ""))
    made: dict[str, Any] = {key: value for key, value in call.items() if value is not None}
    return {**made, "function": function}


def _arguments_object(arguments: Any) -> Any:
    """The arguments as an object; text that a model wrote wrongly stays what it is."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments


def _arguments_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
