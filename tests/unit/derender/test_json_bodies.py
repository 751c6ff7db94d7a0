"""The JSON form of generate answers, and float32 texts."""

import json
import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.float32 import float32_texts
from triptych.json_bodies import (
    GenerateChunk,
    GenerateResponse,
    encode_generate_chunk,
    encode_generate_response,
)
from triptych.logprobs import pack_logprobs
from triptych.wire import ChoiceDelta, Generated, GenerateDelta, count_usage

#: vLLM's own fields that we leave null, and ours.
VLLM_ONLY = {"weight_versions", "decoded_token"}


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def without(value: Any, names: set[str]) -> Any:
    """``value`` without some fields, floats as float32."""
    if isinstance(value, dict):
        return {k: without(v, names) for k, v in value.items() if k not in names}
    if isinstance(value, list):
        return [without(v, names) for v in value]
    return float32(value) if isinstance(value, float) else value


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_float32_text_reads_back_as_the_same_float32(values: list[float]) -> None:
    texts = float32_texts(values)
    assert [float32(json.loads(text)) for text in texts] == values
    assert all(isinstance(json.loads(text), float) for text in texts)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-9999.0, b"-9999.0"),
        (0.0, b"0.0"),
        (-0.0, b"0.0"),
        (-2.136645555496216, b"-2.1366456"),
        (-0.1, b"-0.1"),
        (float("-inf"), b"-9999.0"),
        (float("nan"), b"-9999.0"),
        (-1e300, b"-9999.0"),
        (float("inf"), b"3.4028235e+38"),
        (-3, b"-3.0"),
    ],
)
def test_float32_text_of_special_values(value: float, text: bytes) -> None:
    assert float32_texts([value]) == [text]


@given(st.floats(min_value=-40, max_value=0, width=32))
def test_float32_text_is_the_shortest(value: float) -> None:
    (text,) = float32_texts([value])
    digits = sum(byte in b"0123456789" for byte in text.split(b"e")[0].lstrip(b"-0."))
    for precision in range(1, digits - 1):
        rounded = float(f"{value:.{precision}g}")
        assert float32(rounded) != value or math.isclose(rounded, float(text))


@pytest.mark.parametrize(
    "name",
    [
        "20_generate_lp3",
        "20_generate_promptlp2_lp2",
        "20_generate_n2",
        "20_generate_return_token_ids",
        "20_generate_stop_token_ids",
    ],
)
def test_generate_response_survives_decode_and_encode(recorded_server: Any, name: str) -> None:
    recorded = recorded_server[name]["response"]
    response = msgspec.json.decode(json.dumps(recorded).encode(), type=GenerateResponse)
    generated = response.to_generated(prompt_tokens=5, prompt_token_ids=None)
    encoded = json.loads(encode_generate_response(generated))
    assert encoded.pop("logprobs_mode") == "raw"
    assert without(encoded, VLLM_ONLY) == without(recorded, VLLM_ONLY)
    assert list(encoded) == list(recorded)
    assert list(encoded["choices"][0]) == list(recorded["choices"][0])


def test_generate_stream_survives_decode_and_encode(recorded_server: Any) -> None:
    num_output = 0
    for event in recorded_server["20_generate_stream_usage"]["response"]:
        chunk = msgspec.json.decode(json.dumps(event).encode(), type=GenerateChunk)
        delta = chunk.to_delta()
        num_output += sum(len(choice.token_ids) for choice in delta.choices)
        usage = count_usage(5, num_output) if event["usage"] else None
        encoded = json.loads(encode_generate_chunk(delta, usage, event.get("prompt_token_ids")))
        assert encoded["usage"] is None or encoded["usage"].items() >= event["usage"].items()
        ignored = VLLM_ONLY | {"usage"}
        assert without(encoded, ignored) == without(event, ignored)
        assert list(encoded) == list(event)


def test_decode_puts_the_sampled_token_first_and_each_id_once() -> None:
    body = {
        "request_id": "g",
        "choices": [
            {
                "token_ids": [5, 6],
                "logprobs": {
                    "content": [
                        {
                            "token_id": 5,
                            "logprob": -3.0,
                            "rank": 2,
                            "top_logprobs": [
                                {"token_id": 4, "logprob": -1.0, "rank": 1},
                                {"token_id": 5, "logprob": -3.0, "rank": 2},
                                {"token_id": 4, "logprob": -1.0, "rank": 1},
                            ],
                        },
                        {"token_id": 6, "logprob": -2},
                    ]
                },
            }
        ],
    }
    response = msgspec.json.decode(json.dumps(body).encode(), type=GenerateResponse)
    (choice,) = response.to_generated(prompt_tokens=0, prompt_token_ids=None).choices
    assert choice.logprobs == pack_logprobs([[(5, -3.0, 2), (4, -1.0, 1)], [(6, -2.0, 0)]])


def test_decode_puts_the_prompts_own_token_first() -> None:
    body = {
        "request_id": "g",
        "choices": [],
        "prompt_logprobs": [None, {"7": {"logprob": -1.0}, "8": {"logprob": -2.0, "rank": 4}}],
    }
    response = msgspec.json.decode(json.dumps(body).encode(), type=GenerateResponse)
    columns = response.to_generated(prompt_tokens=2, prompt_token_ids=[1, 8]).prompt_logprobs
    assert columns == pack_logprobs([[], [(8, -2.0, 4), (7, -1.0, 0)]])


def test_infinite_and_missing_scores_are_valid_json() -> None:
    choice = ChoiceDelta(index=0, token_ids=[1], logprobs=pack_logprobs([[(1, float("-inf"), 3)]]))
    generated = Generated(
        request_id="g",
        model="m",
        created=1,
        prompt_tokens=1,
        choices=[choice],
        prompt_logprobs=pack_logprobs([[], [(2, float("nan"), 1)]]),
    )
    body = json.loads(encode_generate_response(generated))
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0
    assert body["prompt_logprobs"] == [
        None,
        {"2": {"logprob": -9999.0, "rank": 1, "decoded_token": None}},
    ]
    chunk = GenerateDelta(request_id="g", choices=[choice])
    assert json.loads(encode_generate_chunk(chunk))["usage"] is None
