"""The request fields that chat completions and completions have in common."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from triptych_render.body import StrictBody
from triptych_render.structured_fields import StructuredFields

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


def one_or_list(value: Any) -> str:
    """Which member of an ``X | list[X]`` union a value means, so that only one reports errors."""
    return "list" if isinstance(value, list) else "one"


OneOrMoreStrings = Annotated[
    Annotated[str, Tag("one")] | Annotated[list[str], Tag("list")], Discriminator(one_or_list)
]


class StreamOptionsFields(StrictBody):
    """OpenAI's ``stream_options``; the two fields that ``triptych.wire.StreamOptions`` knows."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class SharedFields(StructuredFields):
    """Sampling and reply options of both endpoints, vLLM's extensions included.

    Ranges are checked by ``triptych.sampling``; here only types and what an int32 can carry.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptionsFields | None = None

    n: Int32 = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int32 = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: Int32 | None = None
    min_tokens: Int32 = 0
    ignore_eos: bool = False
    stop: OneOrMoreStrings | None = None
    stop_token_ids: list[int] = Field(default_factory=list)
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)

    top_logprobs: Int32 | None = None
    prompt_logprobs: Int32 | None = None
    logprob_token_ids: list[int] | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"

    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: Int32 = 0
    kv_transfer_params: dict[str, Any] | None = None

    # No influence on the answer here; the types are checked all the same.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
