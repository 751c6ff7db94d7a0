"""Examples of bodies. A test sends each of them to a stack with the built-in model."""

import base64
import hashlib
import struct
from collections.abc import Mapping
from typing import Any

_HI = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 8}
_PROMPT = [504, 3575, 282, 4649, 314]
_CHOICE = {"index": 0, "token_ids": [7042, 30], "finish_reason": "stop"}
_ANSWER = {"request_id": "a-request", "choices": [_CHOICE]}
_SCORED = {
    "token_id": 7042,
    "logprob": -0.25,
    "rank": 1,
    "top_logprobs": [{"token_id": 7042, "logprob": -0.25, "rank": 1}],
}
_SCORES = {
    "index": 0,
    "token_ids": [7042],
    "logprobs": {"content": [_SCORED]},
    "finish_reason": "stop",
}
_TOKENS = [b"a", b"b", b""]
_DIGEST = hashlib.sha256(b"".join(struct.pack("<I", len(each)) + each for each in _TOKENS))

CHAT: Mapping[str, Any] = {
    "whole": _HI,
    "with_logprobs": {**_HI, "logprobs": True, "top_logprobs": 3, "temperature": 0},
    "stream": {**_HI, "stream": True, "stream_options": {"include_usage": True}},
    "as_json": {**_HI, "max_tokens": 16, "response_format": {"type": "json_object"}},
}
COMPLETION: Mapping[str, Any] = {
    "whole": {"prompt": "The capital of France is", "max_tokens": 8},
    "several_prompts": {"prompt": ["One, two,", "Red, green,"], "max_tokens": 4, "temperature": 0},
    "score_a_text": {"prompt": "The sky is blue.", "echo": True, "max_tokens": 0, "logprobs": 1},
    "stream": {"prompt": _PROMPT, "max_tokens": 8, "stream": True},
}
GENERATE: Mapping[str, Any] = {
    "whole": {"token_ids": _PROMPT, "sampling_params": {"temperature": 0, "max_tokens": 8}},
    "with_logprobs": {
        "token_ids": _PROMPT,
        "sampling_params": {"temperature": 0, "max_tokens": 4, "logprobs": 3},
    },
    "stream": {"token_ids": _PROMPT, "sampling_params": {"max_tokens": 8}, "stream": True},
}
VOCABULARY: Mapping[str, Any] = {
    "of_three_tokens": {
        "fingerprint": "0123456789abcdef",
        "tokens": [base64.b64encode(each).decode() for each in _TOKENS],
        "sha256": _DIGEST.hexdigest(),
    }
}
DERENDER_CHAT: Mapping[str, Any] = {
    "whole": {"generate_response": _ANSWER, "prompt_tokens": 5},
    "with_logprobs": {
        "generate_response": {"request_id": "a-request", "choices": [_SCORES]},
        "chat_request": {"logprobs": True, "top_logprobs": 1},
    },
    "first_chunk": {"stream": True, "generate_chunk": _ANSWER},
}
DERENDER_COMPLETION: Mapping[str, Any] = {
    "whole": {"generate_responses": [_ANSWER], "prompt_tokens": [5]},
    "first_chunk": {"stream": True, "generate_chunk": _ANSWER},
}
