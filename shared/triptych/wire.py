"""The structs that cross a process: generate requests and deltas, rendered requests, usage.

JSON bodies with nested logprobs are in ``json_bodies``; protobuf conversion is in ``convert``.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from triptych.logprobs import Logprobs, join_logprobs

FinishReason = Literal["stop", "length", "abort"]
LogprobsMode = Literal["raw", "processed"]

#: Ids travel as uint32, and tensors as int64; anything above is refused at the door.
MAX_TOKEN_ID = 2**31 - 1


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the whole output must match: one of ``json`` to ``structural_tag``.

    Names and shapes are vLLM's. ``json`` is a JSON schema (JSON text, or the object itself),
    ``grammar`` EBNF in GBNF's notation whose first rule is ``root``. ``structural_tag`` is JSON
    text in xgrammar's form; render writes it for tool calls that a request requires. The last two
    exist to be refused by name.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Id to bytes of the tokenizer that ``fingerprint`` names; special tokens have no bytes.

    ``sha256`` (hex) is that of the tokens: see ``structured.digest_of``.
    """

    fingerprint: str
    tokens: list[bytes]
    sha256: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How generate samples, without text. ``sampling.check_sampling`` holds the bounds.

    ``stop`` and ``bad_words`` exist here to be refused by generate with a message of their own:
    they need a tokenizer.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    logprobs_mode: LogprobsMode = "raw"
    stop: str | list[str] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /inference/v1/generate`` and of gRPC ``Generate``.

    ``resume_from``: how many of the last ``token_ids`` are output already, so that seeds,
    penalties and limits go on from there. ``choice_index``: the index of the first choice: with
    ``n`` 1 it continues one choice of a request that had several. The prompt is scored with choice
    0 before its output begins, so neither a resumed request nor one of later choices scores it.
    ``tokenizer_fingerprint``: whose ids these are; needed for structured outputs.
    """

    token_ids: list[int]
    sampling_params: SamplingParams
    request_id: str | None = None
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens"] = "tokens"
    resume_from: int = 0
    choice_index: int = 0
    tokenizer_fingerprint: str | None = None

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt proper, without the output that a resumed request brings."""
        return len(self.token_ids) - self.resume_from


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's ``usage``, in tokens."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, int] | None = None
    completion_tokens_details: dict[str, int] | None = None


def count_usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Usage:
    """Usage of one reply. ``cached_tokens`` of the prompts are shown where there are any."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details={"cached_tokens": cached_tokens} if cached_tokens else None,
    )


class ChoiceDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one sequence gained since the last message; ``finish_reason`` ends the sequence.

    ``stop_reason``: the id of the stop token that ended it, None for EOS and otherwise. A str
    tells that the last token is no stop token: ``grammar``, where a structured output ended without
    one, or a stop string that another engine matched itself.
    """

    index: int
    token_ids: list[int]
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class GenerateDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a generate stream.

    ``prompt_logprobs`` come once, with the first message, and so do ``cached_tokens``: how many of
    the prompt's tokens were found in the prefix cache.
    """

    request_id: str
    choices: list[ChoiceDelta]
    prompt_logprobs: Logprobs | None = None
    cached_tokens: int = 0


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A whole generate answer: the joined deltas of one request, each choice once, in order."""

    request_id: str
    model: str
    created: int
    prompt_tokens: int
    choices: list[ChoiceDelta]
    prompt_logprobs: Logprobs | None = None
    prompt_token_ids: list[int] | None = None
    logprobs_mode: LogprobsMode = "raw"
    cached_tokens: int = 0

    def usage(self) -> Usage:
        num_output = sum(len(choice.token_ids) for choice in self.choices)
        return count_usage(self.prompt_tokens, num_output, self.cached_tokens)


def join_deltas(deltas: Iterable[GenerateDelta]) -> tuple[list[ChoiceDelta], Logprobs | None]:
    """The joined choices, by index, and the prompt logprobs of one request's stream."""
    parts: dict[int, list[ChoiceDelta]] = {}
    prompt_logprobs = None
    for delta in deltas:
        prompt_logprobs = delta.prompt_logprobs or prompt_logprobs
        for choice in delta.choices:
            parts.setdefault(choice.index, []).append(choice)
    return [_join_choice(parts[index]) for index in sorted(parts)], prompt_logprobs


def join_answer(
    request: GenerateRequest, deltas: Iterable[GenerateDelta], *, model: str, created: int
) -> Generated:
    """The whole answer to ``request``; ``created`` is a Unix time in seconds."""
    given = list(deltas)
    choices, prompt_logprobs = join_deltas(given)
    asked = bool(request.return_token_ids)
    return Generated(
        request_id=request.request_id or "",
        model=model,
        created=created,
        prompt_tokens=request.prompt_len,
        choices=choices,
        prompt_logprobs=prompt_logprobs,
        prompt_token_ids=request.token_ids[: request.prompt_len] if asked else None,
        logprobs_mode=request.sampling_params.logprobs_mode,
        cached_tokens=sum(delta.cached_tokens for delta in given),
    )


def _join_choice(parts: list[ChoiceDelta]) -> ChoiceDelta:
    scored = [part.logprobs for part in parts if part.logprobs is not None]
    last = parts[-1]
    return ChoiceDelta(
        index=last.index,
        token_ids=[token_id for part in parts for token_id in part.token_ids],
        logprobs=join_logprobs(scored) if scored else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a generate worker is: sequences in its steps, requests before them, KV blocks.

    ``num_free_blocks``: nobody uses them; cached ones count. ``num_steps``: since the start.
    """

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a generate worker says of itself (gRPC ``GetInfo``).

    ``can_resume``: it understands ``resume_from`` and ``choice_index``. ``version``: of triptych;
    empty = it did not say.
    """

    model: str
    max_model_len: int
    vocab_size: int
    dtype: str
    device: str
    max_logprobs: int
    invariant: bool | None = None
    load: WorkerLoad | None = None
    can_resume: bool = False
    version: str = ""
