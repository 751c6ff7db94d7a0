"""OpenAI requests in, generate requests and reply specs out: what both front doors call."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import msgspec

from triptych.errors import InvalidRequestError, ModelNotFoundError, SetupError
from triptych.reply import Rendered, chat_reply_spec, completion_reply_spec
from triptych.request_ids import prefixed_id
from triptych.response_template import ResponseFamily, find_family
from triptych.sampling import Limits
from triptych.wire import GenerateRequest, SamplingParams, StreamOptions
from triptych_render.answers import (
    DetokenizeAnswer,
    TokenizeAnswer,
    TokenizerInfo,
    generate_request_body,
)
from triptych_render.body import decode_object, validate
from triptych_render.chat_request import ChatRequest
from triptych_render.completion_request import (
    CompletionRequest,
    DetokenizeRequest,
    TokenizeChat,
    TokenizePrompt,
)
from triptych_render.encoder import Encoder
from triptych_render.model_files import read_model_files
from triptych_render.prompt_ids import PromptBuilder
from triptych_render.sampling import chat_sampling, completion_sampling, fit_to_prompt
from triptych_render.shared_fields import SharedFields
from triptych_render.template import ChatTemplate
from triptych_render.tools import ToolChoices
from triptych_render.unsupported import (
    CHAT_UNSUPPORTED,
    COMPLETION_UNSUPPORTED,
    Unsupported,
    refuse_unsupported,
)

__all__ = ["Renderer", "generate_request_body"]

_RequestT = TypeVar("_RequestT", bound=SharedFields)

#: Prompts in one completions request.
MAX_PROMPTS = 1024


class Renderer:
    """One model's rendering. Stateless between calls and safe to use from several threads."""

    def __init__(
        self,
        *,
        model: str,
        encoder: Encoder,
        templates: dict[str, ChatTemplate],
        limits: Limits,
        special_tokens: dict[str, str],
        tokenizer_class: str | None = None,
        allow_request_templates: bool = False,
        family: ResponseFamily | None = None,
    ) -> None:
        self.model = model
        self._family = family
        self._encoder = encoder
        self._tool_choices = ToolChoices(family, encoder)
        self._templates = templates
        self._limits = limits
        self._special_tokens = special_tokens
        self._tokenizer_class = tokenizer_class
        self._prompts = PromptBuilder(
            encoder,
            templates,
            special_tokens=special_tokens,
            max_model_len=limits.max_model_len,
            allow_request_templates=allow_request_templates,
        )

    @classmethod
    def from_directory(
        cls,
        path: Path,
        *,
        model: str,
        max_model_len: int | None = None,
        max_logprobs: int = 20,
        max_n: int = 64,
        allow_request_templates: bool = False,
        response_template: str = "auto",
    ) -> "Renderer":
        """The renderer of a Hugging Face directory: tokenizer.json, config.json, a template.

        Without a template chat requests are refused; completions work.

        Raises:
            SetupError: a file is missing or broken, ``max_model_len`` is over the model's, or there
                is no such response template.
        """
        files = read_model_files(path)
        encoder = Encoder.from_file(path / "tokenizer.json")
        limits = Limits(
            vocab_size=files.vocab_size or encoder.vocab_size,
            max_model_len=_context(max_model_len, files.context_len, path),
            max_logprobs=max_logprobs,
            max_n=max_n,
        )
        return cls(
            model=model,
            encoder=encoder,
            templates={
                name: _load_template(name, source, files.special_tokens)
                for name, source in files.templates.items()
            },
            limits=limits,
            special_tokens=files.special_tokens,
            tokenizer_class=files.tokenizer_class,
            allow_request_templates=allow_request_templates,
            family=find_family(response_template, path),
        )

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    def render_chat(self, body: bytes, *, request_id: str | None = None) -> Rendered:
        """A chat completions request as one generate request.

        Raises:
            InvalidRequestError: anything wrong with it; ``param`` names the field.
            ModelNotFoundError: it asks for another model.
        """
        fields = decode_object(body)
        request = self._checked(fields, ChatRequest, CHAT_UNSUPPORTED)
        params = chat_sampling(request, self._limits, self._encoder)
        spec = chat_reply_spec(
            fields,
            model=self.model,
            tokenizer_fingerprint=self._encoder.fingerprint,
            response_template="none" if self._family is None else self._family.name,
        )
        self._tool_choices.check(request, spec)
        prompt = self._prompts.chat_text(request)
        token_ids = self._prompts.chat_text_ids(request, prompt)
        if calls := self._tool_choices.held(request, spec, prompt):
            params = msgspec.structs.replace(params, structured_outputs=calls)
        made = self._generate_request(
            request,
            token_ids,
            fit_to_prompt(params, token_ids, self._limits, path="messages"),
            prefixed_id("chatcmpl-", request_id),
        )
        return Rendered(requests=[made], spec=spec)

    def render_completion(self, body: bytes, *, request_id: str | None = None) -> Rendered:
        """A completions request as one generate request per prompt, in order.

        Raises:
            InvalidRequestError: anything wrong with it; ``param`` names the field.
            ModelNotFoundError: it asks for another model.
        """
        fields = decode_object(body)
        request = self._checked(fields, CompletionRequest, COMPLETION_UNSUPPORTED)
        params = completion_sampling(request, self._limits, self._encoder)
        prompts = _prompts(request.prompt)
        names = _request_names(prefixed_id("cmpl-", request_id), len(prompts))
        paths = ["prompt"] if len(prompts) == 1 else [f"prompt[{i}]" for i in range(len(prompts))]
        requests = []
        for prompt, name, path in zip(prompts, names, paths, strict=True):
            token_ids = self._prompt_ids(prompt, path, request)
            fitted = fit_to_prompt(params, token_ids, self._limits, path=path)
            requests.append(self._generate_request(request, token_ids, fitted, name))
        spec = completion_reply_spec(
            fields, model=self.model, tokenizer_fingerprint=self._encoder.fingerprint
        )
        return Rendered(requests=requests, spec=spec)

    def tokenize(self, body: bytes) -> bytes:
        """The ids of a text, or of messages exactly as chat renders them.

        Raises:
            InvalidRequestError: anything wrong with it; ``param`` names the field.
            ModelNotFoundError: it asks for another model.
        """
        fields = decode_object(body)
        is_chat = "messages" in fields
        request = validate(fields, TokenizeChat) if is_chat else validate(fields, TokenizePrompt)
        self._check_model(request.model)
        if isinstance(request, TokenizeChat):
            token_ids = self._prompts.chat_text_ids(request, self._prompts.chat_text(request))
        else:
            token_ids = self._prompts.text_ids(
                request.prompt, "prompt", add_special_tokens=request.add_special_tokens
            )
        return msgspec.json.encode(
            TokenizeAnswer(
                count=len(token_ids),
                max_model_len=self.max_model_len,
                tokens=token_ids,
                token_strs=[self._encoder.piece(token_id) for token_id in token_ids]
                if request.return_token_strs
                else None,
            )
        )

    def detokenize(self, body: bytes) -> bytes:
        """The text of ids, special tokens included.

        Raises:
            InvalidRequestError: an id outside the vocabulary, or another wrong field.
            ModelNotFoundError: it asks for another model.
        """
        request = validate(decode_object(body), DetokenizeRequest)
        self._check_model(request.model)
        vocab_size = self._limits.vocab_size
        for index, token_id in enumerate(request.tokens):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"tokens[{index}] is {token_id}; token ids are between 0 and "
                    f"{vocab_size - 1} here",
                    param=f"tokens[{index}]",
                )
        return msgspec.json.encode(DetokenizeAnswer(prompt=self._encoder.decode(request.tokens)))

    def tokenizer_info(self) -> bytes:
        template = self._templates.get("default")
        return msgspec.json.encode(
            TokenizerInfo(
                model=self.model,
                tokenizer_class=self._tokenizer_class,
                kind=self._encoder.kind,
                vocab_size=self._limits.vocab_size,
                max_model_len=self.max_model_len,
                fingerprint=self._encoder.fingerprint,
                bos_token=self._special_tokens.get("bos_token"),
                eos_token=self._special_tokens.get("eos_token"),
                unk_token=self._special_tokens.get("unk_token"),
                pad_token=self._special_tokens.get("pad_token"),
                chat_template=template.source if template else None,
            )
        )

    def _checked(
        self, fields: dict[str, Any], model: type[_RequestT], table: Mapping[str, Unsupported]
    ) -> _RequestT:
        """``fields`` as a request of this model that asks for nothing unserved."""
        request = validate(fields, model)
        self._check_model(request.model)
        _check_stream_options(request)
        refuse_unsupported(fields, table)
        return request

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked != self.model:
            raise ModelNotFoundError(
                f"The model `{asked[:100]}` does not exist; this server has `{self.model}`",
                param="model",
            )

    def _prompt_ids(
        self, prompt: str | list[int], path: str, request: CompletionRequest
    ) -> list[int]:
        """Ids as they are; text encoded. An empty text is refused even where a BOS is added."""
        if isinstance(prompt, list):
            return prompt
        if not prompt:
            raise InvalidRequestError(f"{path} is empty; text is needed", param=path)
        return self._prompts.text_ids(prompt, path, add_special_tokens=request.add_special_tokens)

    def _generate_request(
        self,
        request: SharedFields,
        token_ids: list[int],
        params: SamplingParams,
        request_id: str,
    ) -> GenerateRequest:
        options = request.stream_options
        return GenerateRequest(
            request_id=request_id,
            token_ids=token_ids,
            sampling_params=params,
            model=self.model,
            stream=request.stream,
            stream_options=StreamOptions(**options.model_dump()) if options else None,
            cache_salt=request.cache_salt,
            priority=request.priority,
            kv_transfer_params=request.kv_transfer_params,
            return_token_ids=request.return_token_ids,
            tokenizer_fingerprint=self._encoder.fingerprint,
        )


def _check_stream_options(request: SharedFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError(
            "stream_options is set, but stream is not true", param="stream_options"
        )


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The prompts of a completions request, one by one: a text or ids each."""
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        return [prompt]  # type: ignore[list-item]  # the first element tells the whole list's type
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"prompt holds {len(prompt):,} prompts; at most {MAX_PROMPTS:,} are allowed",
            param="prompt",
        )
    return list(prompt)


def _request_names(base: str, num_prompts: int) -> list[str]:
    return [base] if num_prompts == 1 else [f"{base}-{index}" for index in range(num_prompts)]


def _context(asked: int | None, of_model: int | None, path: Path) -> int:
    if asked is None and of_model is None:
        raise SetupError(f"{path} has no context length in config.json; set max_model_len")
    if asked is not None and of_model is not None and asked > of_model:
        raise SetupError(f"max_model_len is {asked:,}, but the model's context is {of_model:,}")
    context = asked or of_model
    assert context is not None
    return context


def _load_template(name: str, source: str, special_tokens: dict[str, str]) -> ChatTemplate:
    try:
        return ChatTemplate(source, special_tokens)
    except jinja2.TemplateError as error:
        raise SetupError(f"the chat template {name} is broken: {error}") from error
