"""Messages and texts to prompt ids: picks the template, renders, bounds the text, encodes."""

from collections.abc import Mapping
from functools import lru_cache

import jinja2

from triptych.errors import ContextLengthError, InvalidRequestError
from triptych_render.chat_request import ChatPrompt
from triptych_render.encoder import Encoder
from triptych_render.template import RESERVED_VARIABLES, ChatTemplate, PromptOptions


class PromptBuilder:
    """The prompts of one model.

    ``templates`` holds ``default`` and sometimes ``tool_use``, which is taken when there are tools.
    """

    def __init__(
        self,
        encoder: Encoder,
        templates: Mapping[str, ChatTemplate],
        *,
        special_tokens: dict[str, str],
        max_model_len: int,
        allow_request_templates: bool,
    ) -> None:
        self._encoder = encoder
        self._templates = templates
        self._max_model_len = max_model_len
        self._allow_request_templates = allow_request_templates

        @lru_cache(maxsize=32)
        def compile_template(source: str) -> ChatTemplate:
            return ChatTemplate(source, special_tokens)

        self._compile_template = compile_template

    def chat_text(self, request: ChatPrompt) -> str:
        """A chat as the template writes it.

        Raises:
            InvalidRequestError: no template, one that refuses, options that exclude each other.
        """
        options = _options(request)
        return self._pick_template(request).render(request.messages, options)

    def chat_text_ids(self, request: ChatPrompt, text: str) -> list[int]:
        """The ids of a chat; only the template writes special tokens unless the request says so.

        Raises:
            ContextLengthError: a text that cannot fit.
        """
        return self.text_ids(text, "messages", add_special_tokens=request.add_special_tokens)

    def text_ids(self, text: str, path: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of ``text``, which is bounded before it is encoded.

        Raises:
            ContextLengthError: longer than a context of the vocabulary's longest tokens.
        """
        longest = self._encoder.max_token_chars
        limit = self._max_model_len * longest
        if len(text) > limit:
            raise ContextLengthError(
                f"prompt has {len(text):,} characters, limit is {limit:,} (context "
                f"{self._max_model_len:,} tokens of at most {longest} characters)",
                param=path,
            )
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)

    def _pick_template(self, request: ChatPrompt) -> ChatTemplate:
        if request.chat_template is not None:
            return self._request_template(request.chat_template)
        names = ("tool_use", "default") if request.tools else ("default",)
        for name in names:
            if name in self._templates:
                return self._templates[name]
        raise InvalidRequestError(
            "this model has no chat template, so only completions are served", param="messages"
        )

    def _request_template(self, source: str) -> ChatTemplate:
        if not self._allow_request_templates:
            raise InvalidRequestError(
                "chat_template is not allowed by this server; the model's own is used",
                param="chat_template",
            )
        try:
            return self._compile_template(source)
        except jinja2.TemplateError as error:
            raise InvalidRequestError(
                f"chat_template is not a valid template: {error}", param="chat_template"
            ) from error


def _options(request: ChatPrompt) -> PromptOptions:
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt cannot both be true",
            param="continue_final_message",
        )
    for name in request.chat_template_kwargs:
        if name in RESERVED_VARIABLES:
            raise InvalidRequestError(
                f"chat_template_kwargs may not set {name}", param=f"chat_template_kwargs.{name}"
            )
    variables = dict(request.chat_template_kwargs)
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    add_generation_prompt = request.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    return PromptOptions(
        tools=request.tools or None,
        documents=request.documents,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables=variables,
    )
