"""Tool choices: what can be served, and what holds an answer that has to be calls."""

import re

from triptych.errors import InvalidRequestError
from triptych.reply import ReplySpec
from triptych.response_template import ResponseFamily
from triptych.structured import check_structured
from triptych.wire import StructuredOutputs
from triptych_render.call_grammar import CallGrammar, call_schemas
from triptych_render.chat_request import ChatRequest
from triptych_render.encoder import Encoder

#: Names that every family's template reads back.
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]{0,127}")
#: They would hold the same output to something else; response_format is about content only.
_EXCLUDED = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "continue_final_message",
)


class ToolChoices:
    """Serves the tool choices of one model."""

    def __init__(self, family: ResponseFamily | None, encoder: Encoder) -> None:
        self._family = family
        syntax = family and family.call_syntax
        self._grammar = CallGrammar(family, syntax, encoder) if family and syntax else None

    def check(self, request: ChatRequest, spec: ReplySpec) -> None:
        """Refuse a required call that cannot be held.

        Raises:
            InvalidRequestError: it has no tool, or one whose name is not plain; the response
                template finds no calls, or cannot say how they are written; or another field says
                what the answer has to be.
        """
        if request.tool_choice in ("none", "auto"):
            return
        if not request.tools:
            raise _refusal("requires a call, but there are no tools")
        names = [tool["function"]["name"] for tool in request.tools]
        if spec.tool_name is not None and spec.tool_name not in names:
            raise _refusal(f"names {spec.tool_name[:100]!r}, which is not among the tools")
        for name in names if spec.tool_name is None else [spec.tool_name]:
            if not _PLAIN_NAME.fullmatch(name):
                raise _refusal(
                    "can require functions whose names are letters, digits, dots, dashes and "
                    f"underscores, from a letter or underscore on, at most 128; not {name[:100]!r}"
                )
        if self._family is None or not self._family.has_calls:
            raise _refusal(
                "can be none or auto here: this server has no response template that finds tool "
                "calls (--response-template)"
            )
        if self._grammar is None:
            raise _refusal(
                f"can be none or auto here: response template {self._family.name} does not say "
                f"how calls are written (call_syntax)"
            )
        for field in _EXCLUDED:
            if getattr(request, field):
                raise _refusal(f"requires a call, so {field} cannot be set")

    def held(self, request: ChatRequest, spec: ReplySpec, prompt: str) -> StructuredOutputs | None:
        """What the answer to ``prompt`` has to match; None where a call is not required.

        Raises:
            InvalidRequestError: a tool's parameters cannot be held; ``param`` is their place.
        """
        if spec.tool_choice != "required":
            return None
        assert self._grammar is not None, "checked requests only"
        outputs = StructuredOutputs(
            structural_tag=self._grammar.structural_tag(
                prompt,
                call_schemas(request.tools, spec.tool_name),
                allows_several=spec.parallel_tool_calls,
            )
        )
        check_structured(outputs, "tools", {"structural_tag": "tools"})
        return outputs


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"tool_choice {message}", param="tool_choice")
