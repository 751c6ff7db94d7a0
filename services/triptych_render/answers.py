"""The JSON that render answers with. Field names are vLLM's."""

import msgspec

from triptych.wire import GenerateRequest


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None = None


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the tokenizer is.

    The special tokens stand at the top, as in tokenizer_config.json: lm-eval looks for
    ``eos_token`` there and takes a server without the field for one without a tokenizer.
    ``fingerprint`` is the first 16 hex digits of the sha256 of tokenizer.json.
    """

    model: str
    tokenizer_class: str | None
    kind: str
    vocab_size: int
    max_model_len: int
    fingerprint: str
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    chat_template: str | None


def generate_request_body(request: GenerateRequest) -> bytes:
    """The body of ``POST /inference/v1/generate``: ours takes it, and vLLM's.

    Sampling parameters that are None are left out, because vLLM's server refuses null for some.
    """
    params = msgspec.structs.asdict(request.sampling_params)
    return msgspec.json.encode(
        {
            "request_id": request.request_id,
            "token_ids": request.token_ids,
            "sampling_params": {k: v for k, v in params.items() if v is not None},
            "model": request.model,
            "return_token_ids": request.return_token_ids,
            "output_mode": request.output_mode,
            "stream": request.stream,
            "stream_options": request.stream_options,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "kv_transfer_params": request.kv_transfer_params,
            "tokenizer_fingerprint": request.tokenizer_fingerprint,
        }
    )
