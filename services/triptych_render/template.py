"""Chat templates, rendered by transformers' own sandboxed code (which imports no torch)."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import jinja2
import msgspec
from transformers.utils.chat_template_utils import render_jinja_template

from triptych.errors import InvalidRequestError
from triptych_render.chat_request import Message
from triptych_render.messages import MessageStyle, NoContent, template_messages

#: Names that a request's ``chat_template_kwargs`` may not set: they have fields of their own, or
#: are parameters of the functions that render.
RESERVED_VARIABLES = frozenset(
    {
        "self",
        "conversations",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "return_assistant_tokens_mask",
    }
)
MAX_ERROR_CHARS = 240

#: What a template may raise, besides jinja's errors, on messages that it does not expect.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_NO_CONTENT: tuple[NoContent, ...] = ("absent", "empty", "null")

_PROBE = "triptych-probe"
_PROBE_NAME = "triptych_probe_call"
_QUESTION: Message = {"role": "user", "content": _PROBE}
_CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call12345",
            "type": "function",
            "function": {"name": _PROBE_NAME, "arguments": f'{{"{_PROBE}": 1}}'},
        }
    ],
}


class PromptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a template sees besides the messages. ``tools`` is None when there are none."""

    tools: list[Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class ChatTemplate:
    """One template with the special tokens that it may name and the style it reads messages in."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """Compile the template and learn its style.

        Raises:
            jinja2.TemplateSyntaxError: it is no template.
        """
        render_jinja_template(conversations=[], chat_template=source)
        self.source = source
        self._special_tokens = special_tokens
        self._has_developer = "developer" in source
        self.style = _learn_style(self._render_plain)

    def render(self, messages: Sequence[Message], options: PromptOptions) -> str:
        """The prompt's text.

        Raises:
            InvalidRequestError: the template refuses the messages, or fails on them.
        """
        made = template_messages(messages, self.style, has_developer=self._has_developer)
        try:
            return self._apply(made, options)
        except _TEMPLATE_FAILURES as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise InvalidRequestError(
                f"the chat template refused the request: {said[:MAX_ERROR_CHARS]}",
                param="messages",
            ) from error

    def _render_plain(self, messages: list[dict[str, Any]]) -> str:
        return self._apply(messages, PromptOptions())

    def _apply(self, messages: list[dict[str, Any]], options: PromptOptions) -> str:
        texts, _ = render_jinja_template(
            conversations=[messages],
            tools=options.tools,
            documents=options.documents,
            chat_template=self.source,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            **{**self._special_tokens, **options.variables},
        )
        text: str = texts[0]
        return text


def _learn_style(render: Callable[[list[dict[str, Any]]], str]) -> MessageStyle:
    """How a template reads messages, by rendering a few: its source does not say it reliably.

    A template that refuses every probe gets transformers' conventions.
    """
    text_as_parts = _reads_only_parts(render)
    rendered: list[tuple[MessageStyle, str]] = []
    for arguments_as_text, no_content in product((False, True), _NO_CONTENT):
        style = MessageStyle(
            text_as_parts=text_as_parts, arguments_as_text=arguments_as_text, no_content=no_content
        )
        text = _try_render(render, [_QUESTION, _CALL], style)
        # Python's own notation of an object means that the template wanted JSON text.
        if text and f"{{'{_PROBE}" not in text:
            rendered.append((style, text))
    showing_the_call = [style for style, text in rendered if _PROBE_NAME in text]
    candidates = showing_the_call or [style for style, _ in rendered]
    return candidates[0] if candidates else MessageStyle(text_as_parts=text_as_parts)


def _reads_only_parts(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    as_text = _try_render(render, [_QUESTION], MessageStyle())
    as_parts = _try_render(render, [_QUESTION], MessageStyle(text_as_parts=True))
    return _PROBE in as_parts and _PROBE not in as_text


def _try_render(
    render: Callable[[list[dict[str, Any]]], str], messages: list[Message], style: MessageStyle
) -> str:
    try:
        return render(template_messages(messages, style, has_developer=True))
    except _TEMPLATE_FAILURES:
        return ""
