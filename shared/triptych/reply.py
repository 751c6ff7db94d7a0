"""The reply spec: everything derender needs to know of an OpenAI request, and how to read it.

render sends it beside the ids, opaque to the gateway. A client that chains the panels by hand sends
the OpenAI request itself to derender, which reads the same spec from it with the same code.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from triptych.errors import InvalidRequestError
from triptych.wire import GenerateRequest, StreamOptions

Endpoint = Literal["chat", "completions"]
ToolChoice = Literal["none", "auto", "required"]
#: Stop strings of a request, and characters of one of them or of a bad word.
MAX_STOP_STRINGS = 16
MAX_STRING_CHARS = 1000
_TOOL_CHOICES: dict[str, ToolChoice] = {"none": "none", "auto": "auto", "required": "required"}


class ReplySpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to write the reply.

    ``top_logprobs``: how many of generate's candidates a position shows; None = all that came.
    ``logprobs``: whether entries are shown at all. ``tools``: OpenAI's, where the answer may call
    them, else none. ``tool_name``: the one that it has to call. ``response_template``: the name of
    render's; None where render did not say.
    """

    endpoint: Endpoint
    model: str
    n: int = 1
    num_prompts: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage_stats: bool = False
    logprobs: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    echo: bool = False
    stop: list[str] = []
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    tokenizer_fingerprint: str | None = None
    include_reasoning: bool = True
    tools: list[Any] = []
    tool_choice: ToolChoice = "none"
    tool_name: str | None = None
    parallel_tool_calls: bool = True
    response_template: str | None = None


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """What render makes of one OpenAI request: a generate request per prompt, and the spec."""

    requests: list[GenerateRequest]
    spec: ReplySpec


class Fed(msgspec.Struct, frozen=True, kw_only=True):
    """What derender makes of one delta.

    ``chunks``: JSON of OpenAI chunk objects, in order, without SSE framing. ``done_prompts``:
    prompts whose choices are all finished or stopped, so that generate may be cancelled.
    ``is_done``: the reply is complete, its usage chunk included.
    """

    chunks: list[bytes]
    done_prompts: list[int]
    is_done: bool


class _CommonFields(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class ChatFields(_CommonFields, frozen=True, kw_only=True):
    logprobs: bool | None = None
    top_logprobs: int | None = None
    include_reasoning: bool = True
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True


class CompletionFields(_CommonFields, frozen=True, kw_only=True):
    prompt: Any = None
    logprobs: int | bool | None = None
    top_logprobs: int | None = None
    echo: bool | None = None


_FieldsT = TypeVar("_FieldsT", bound=_CommonFields)


def chat_reply_spec(
    request: Any,
    *,
    model: str,
    tokenizer_fingerprint: str | None = None,
    response_template: str | None = None,
) -> ReplySpec:
    """The spec of a chat request, given as decoded JSON.

    Raises:
        InvalidRequestError: a field that the reply depends on has a wrong type.
    """
    fields = _read(request, ChatFields)
    choice, tool_name = read_tool_choice(fields.tool_choice)
    may_call = bool(fields.tools) and choice != "none"
    return ReplySpec(
        endpoint="chat",
        logprobs=bool(fields.logprobs or fields.logprob_token_ids),
        top_logprobs=_num_shown(fields.top_logprobs or 0, fields),
        tokenizer_fingerprint=tokenizer_fingerprint,
        include_reasoning=fields.include_reasoning,
        tools=fields.tools if may_call else [],
        tool_choice=choice if may_call else "none",
        tool_name=tool_name,
        parallel_tool_calls=fields.parallel_tool_calls,
        response_template=response_template,
        **_common(fields, model),
    )


def read_tool_choice(value: str | dict[str, Any]) -> tuple[ToolChoice, str | None]:
    """OpenAI's ``tool_choice``: the kind, and the name of the function that is required.

    Raises:
        InvalidRequestError: none of ``none``, ``auto``, ``required`` and a named function.
    """
    if isinstance(value, str) and value in _TOOL_CHOICES:
        return _TOOL_CHOICES[value], None
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if isinstance(name, str) and name:
        return "required", name
    raise InvalidRequestError(
        'tool_choice must be "none", "auto", "required", or '
        '{"type": "function", "function": {"name": "..."}}',
        param="tool_choice",
    )


def completion_reply_spec(
    request: Any, *, model: str, tokenizer_fingerprint: str | None = None
) -> ReplySpec:
    """The spec of a completions request, given as decoded JSON.

    Raises:
        InvalidRequestError: a field that the reply depends on has a wrong type.
    """
    fields = _read(request, CompletionFields)
    num_logprobs = completion_logprobs(fields.logprobs, fields.top_logprobs)
    return ReplySpec(
        endpoint="completions",
        num_prompts=count_prompts(fields.prompt),
        echo=bool(fields.echo),
        logprobs=num_logprobs is not None or bool(fields.logprob_token_ids),
        top_logprobs=_num_shown(num_logprobs, fields),
        tokenizer_fingerprint=tokenizer_fingerprint,
        **_common(fields, model),
    )


def completion_logprobs(logprobs: int | bool | None, top_logprobs: int | None) -> int | None:
    """The number of candidates that a completions request asks for; None = no logprobs.

    An integer counts; ``true`` takes ``top_logprobs``; ``false`` and null are off
    (logprobs.md, section 4).
    """
    if logprobs is True:
        return top_logprobs or 0
    if logprobs is False:
        return None
    return logprobs


def count_prompts(prompt: Any) -> int:
    """How many prompts OpenAI's ``prompt`` holds: a string or a list of ids is one."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def stop_strings(stop: str | list[str] | None) -> list[str]:
    """The stop strings as a list, without empty ones (which would match everywhere).

    Raises:
        InvalidRequestError: too many of them, empty ones included, or too long ones.
    """
    listed = [stop] if isinstance(stop, str) else stop or []
    if len(listed) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"stop has {len(listed):,} strings; at most {MAX_STOP_STRINGS} are allowed",
            param="stop",
        )
    check_lengths("stop", listed)
    return [text for text in listed if text]


def check_lengths(name: str, strings: Sequence[str]) -> None:
    """Refuse strings of the field ``name`` that are too long."""
    longest = max(map(len, strings), default=0)
    if longest > MAX_STRING_CHARS:
        raise InvalidRequestError(
            f"{name} has a string of {longest:,} characters; at most {MAX_STRING_CHARS:,} are "
            f"allowed",
            param=name,
        )


def _num_shown(asked: int | None, fields: _CommonFields) -> int | None:
    """``asked``, or None for all that came: the whole vocabulary, or ids that the request lists."""
    return None if asked == -1 or fields.logprob_token_ids else asked


def _common(fields: _CommonFields, model: str) -> dict[str, Any]:
    options = fields.stream_options or StreamOptions()
    return {
        "model": fields.model or model,
        "n": 1 if fields.n is None else fields.n,
        "stream": bool(fields.stream),
        "include_usage": bool(options.include_usage),
        "continuous_usage_stats": bool(options.continuous_usage_stats),
        "prompt_logprobs": fields.prompt_logprobs is not None,
        "stop": stop_strings(fields.stop),
        "include_stop_str_in_output": fields.include_stop_str_in_output,
        "min_tokens": fields.min_tokens,
        "skip_special_tokens": fields.skip_special_tokens,
        "return_token_ids": bool(fields.return_token_ids),
        "return_tokens_as_token_ids": bool(fields.return_tokens_as_token_ids),
    }


def _read(request: Any, fields: type[_FieldsT]) -> _FieldsT:
    if not isinstance(request, dict):
        raise InvalidRequestError(f"the request must be an object, not {type(request).__name__}")
    given = {name: value for name, value in request.items() if value is not None}
    try:
        return msgspec.convert(given, fields)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$.")
        path = place.rstrip("`")
        raise InvalidRequestError(f"{path}: {fault}", param=path) from error
