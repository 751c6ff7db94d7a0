"""The fields of OpenAI requests, as typed keyword arguments; vLLM's extensions included.

What a field means, and what holds where it is left out, says render (docs/render.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from triptych.wire import LogprobsMode, StreamOptions, StructuredOutputs

JsonObject: TypeAlias = Mapping[str, Any]
#: A text, or its token ids.
OnePrompt: TypeAlias = str | Sequence[int]
#: One, several texts, or several lists of ids.
Prompt: TypeAlias = OnePrompt | Sequence[OnePrompt]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class _NeededInMessage(TypedDict):
    role: Role


class Message(_NeededInMessage, total=False):
    """A message of a chat request."""

    content: str | Sequence[JsonObject] | None
    tool_calls: Sequence[JsonObject] | None
    tool_call_id: str | None
    name: str | None


#: A text alone is one message of the user.
Messages: TypeAlias = str | Sequence[Message]


class SharedFields(TypedDict, total=False):
    """What chat and completions have in common."""

    model: str | None
    stream_options: StreamOptions | None
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int]
    logit_bias: Mapping[str, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str]
    top_logprobs: int | None
    prompt_logprobs: int | None
    logprob_token_ids: Sequence[int] | None
    logprobs_mode: LogprobsMode
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    return_token_ids: bool | None
    return_tokens_as_token_ids: bool | None
    cache_salt: str | None
    priority: int
    kv_transfer_params: JsonObject | None
    response_format: JsonObject | None
    structured_outputs: StructuredOutputs | JsonObject | None
    guided_json: JsonObject | str | None
    guided_regex: str | None
    guided_choice: Sequence[str] | None
    guided_grammar: str | None
    user: str | None
    metadata: JsonObject | None
    store: bool | None
    service_tier: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class TemplateFields(TypedDict, total=False):
    """What the prompt of a chat is made from, beside the messages."""

    tools: Sequence[JsonObject]
    documents: Sequence[JsonObject] | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    chat_template: str | None
    chat_template_kwargs: JsonObject
    reasoning_effort: str | None
    add_special_tokens: bool


class ChatFields(SharedFields, TemplateFields, total=False):
    """``POST /v1/chat/completions``."""

    logprobs: bool
    max_completion_tokens: int | None
    tool_choice: str | JsonObject
    parallel_tool_calls: bool | None
    include_reasoning: bool


class CompletionFields(SharedFields, total=False):
    """``POST /v1/completions``. ``logprobs`` is a count, or true for ``top_logprobs`` many."""

    echo: bool
    logprobs: bool | int | None
    best_of: int | None
    add_special_tokens: bool
