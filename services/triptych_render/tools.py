"""Whether a chat request's tool choice can be served."""

import re

from triptych.errors import InvalidRequestError
from triptych.reply import ReplySpec
from triptych.response_template import ResponseFamily
from triptych_render.chat_request import ChatRequest

_PLAIN_NAME = re.compile(r"[\w.-]{1,128}")


def check_tools(request: ChatRequest, spec: ReplySpec, family: ResponseFamily | None) -> None:
    """Refuse a required call that has no tool, or that no response template could find.

    Raises:
        InvalidRequestError: such a request.
    """
    if request.tool_choice in ("none", "auto"):
        return
    if not request.tools:
        raise InvalidRequestError(
            "tool_choice requires a call, but there are no tools", param="tool_choice"
        )
    names = [tool["function"]["name"] for tool in request.tools]
    if spec.tool_name is not None and spec.tool_name not in names:
        raise InvalidRequestError(
            f"tool_choice names {spec.tool_name[:100]!r}, which is not among the tools",
            param="tool_choice",
        )
    if spec.tool_name is not None and not _PLAIN_NAME.fullmatch(spec.tool_name):
        raise InvalidRequestError(
            "tool_choice can name a function of letters, digits, dots, dashes and underscores, at "
            "most 128",
            param="tool_choice",
        )
    if family is None or not family.has_calls:
        raise InvalidRequestError(
            "tool_choice can be none or auto here: this server has no response template that finds "
            "tool calls (--response-template)",
            param="tool_choice",
        )
