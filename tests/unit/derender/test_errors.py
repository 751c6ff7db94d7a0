import json
from typing import Any

import pytest

from triptych.errors import InvalidRequestError, ModelNotFoundError, TriptychError
from triptych.reply import ReplySpec
from triptych_derender.derenderer import Derenderer
from unit.derender.toys import MODEL, TABLES, answer, toy_derenderer

DERENDERER = toy_derenderer(TABLES["byte_level"], max_model_len=8)


def response(**choice: Any) -> dict[str, Any]:
    base = {"index": 0, "finish_reason": "length", "token_ids": [97, 98]}
    return {"request_id": "g", "choices": [base | choice]}


def content(num_candidates: int, num_positions: int = 2) -> dict[str, Any]:
    positions = []
    for token_id in range(97, 97 + num_positions):
        listed = [
            {"token_id": (token_id + n) % 256, "logprob": -1.0 - n, "rank": n + 1}
            for n in range(num_candidates)
        ]
        positions.append({"token_id": token_id, "logprob": -1.0, "rank": 1, "top_logprobs": listed})
    return {"content": positions}


def refusal(body: Any, *, endpoint: str = "chat", derenderer: Derenderer = DERENDERER) -> Any:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    serve = derenderer.derender_chat if endpoint == "chat" else derenderer.derender_completion
    with pytest.raises(TriptychError) as caught:
        serve(encoded)
    return caught.value


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"{", "not valid JSON", None),
        (b"\xff", "not valid JSON", None),
        (b'{"model": "\xff"}', "not valid JSON", None),
        (b'{"generate_response": ' + b"[" * 5000 + b"]" * 5000 + b"}", "got `array`", None),
        (b'{"prompt_tokens": -' + b"9" * 5000 + b"}", "prompt_tokens", None),
        (b'{"prompt_tokens": 1e999}', "out of range", None),
        (b'{"chat_request": {"stop": "\\ud800"}}', "not valid JSON", None),
        (b"[1]", "Expected `object`, got `array`", None),
        ({}, "generate_response is missing", "generate_response"),
        ({"stream": True}, "generate_chunk is missing", "generate_chunk"),
        (
            {"generate_response": response(token_ids=[97, -1])},
            "generate_response.choices[0].token_ids[1]: Expected `int` >= 0, got -1",
            "generate_response.choices[0].token_ids[1]",
        ),
        (
            {"generate_response": response(token_ids=[2**31])},
            "Expected `int` <= 2147483647, got 2147483648",
            "generate_response.choices[0].token_ids[0]",
        ),
        (
            {"generate_response": response(token_ids=["a"])},
            "generate_response.choices[0].token_ids[0]: Expected `int`, got `str`",
            "generate_response.choices[0].token_ids[0]",
        ),
        (
            {"generate_response": response(token_ids=None)},
            "Expected `array`, got `null`",
            "generate_response.choices[0].token_ids",
        ),
        (
            {"generate_response": response() | {"output_mode": "text"}},
            "output_mode: Invalid enum value 'text'",
            "generate_response.output_mode",
        ),
        (
            {"generate_response": response() | {"choices": []}},
            "generate_response.choices is empty",
            "generate_response.choices",
        ),
        (
            {"generate_response": response(token_ids=[97] * 9)},
            "has 9 ids, limit is 8",
            "choices[0].token_ids",
        ),
        (
            {"generate_response": response(logprobs=content(22))},
            "has 22 candidates, limit is 21",
            "generate_response.choices[0].logprobs.content[0]",
        ),
        (
            {"generate_response": response(logprobs=content(1, 3))},
            "has 3 positions, choices[0].token_ids 2 ids",
            "choices[0].logprobs",
        ),
        (
            {"generate_response": response(token_ids=[97, 99], logprobs=content(1))},
            "at position 1 scores 98, choices[0].token_ids[1] is 99",
            "choices[0].logprobs",
        ),
        (
            {"generate_response": response(), "chat_request": {"stop": ["x", 5]}},
            "stop[1]: Expected `str`, got `int`",
            "stop[1]",
        ),
        (
            {
                "generate_response": response(),
                "chat_request": {"stream_options": {"include_usage": 5}},
            },
            "stream_options.include_usage: Expected `bool | null`, got `int`",
            "stream_options.include_usage",
        ),
        (
            {"generate_response": response(index=10**9)},
            "choices[0].index is 1000000000, it must be below 1,024",
            "choices[0].index",
        ),
        (
            {"generate_response": response() | {"choices": response()["choices"] * 2}},
            "choices[1].index is 0, as in an earlier choice",
            "choices[1].index",
        ),
        (
            {"generate_chunk": response(), "chat_request": {"n": 10**9}},
            "n is 1000000000, it must be 1 to 1,024",
            "n",
        ),
        (
            {"generate_response": response(), "chat_request": {"stop": ["x"] * 17}},
            "stop has 17 strings; at most 16 are allowed",
            "stop",
        ),
        (
            {"generate_chunk": response(), "chat_request": {"stop": "x" * 1001}},
            "stop has a string of 1,001 characters; at most 1,000 are allowed",
            "stop",
        ),
        (
            {"generate_response": response(), "prompt_tokens": -3},
            "prompt_tokens: Expected `int` >= 0, got -3",
            "prompt_tokens",
        ),
        (
            {"generate_chunk": response(), "stream_state": {"role_sent": True}},
            "stream_state: Expected `str | null`, got `object`",
            "stream_state",
        ),
    ],
)
def test_bad_chat_body_names_the_field_and_the_value(
    body: Any, message: str, param: str | None
) -> None:
    error = refusal(body)
    assert isinstance(error, InvalidRequestError)
    assert message in error.message
    assert error.param == param or param is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"generate_responses": []}, "generate_responses has 0 answers"),
        ({}, "generate_responses is missing"),
        (
            {"generate_responses": [response()], "prompt_tokens": [1, 2]},
            "prompt_tokens has 2 entries, there are 1",
        ),
        (
            {"generate_responses": [response()], "prompt_token_ids": [[1], [2]]},
            "prompt_token_ids has 2 entries, there are 1",
        ),
        (
            {"generate_responses": [response()], "prompt_token_ids": [[1], 2]},
            "mixes ids and lists",
        ),
        (
            {"generate_responses": [response()], "completion_request": {"echo": True}},
            "echo needs prompt_token_ids",
        ),
        (
            {
                "generate_responses": [response() | {"prompt_logprobs": [None]}],
                "prompt_token_ids": [[1, 2]],
                "completion_request": {"prompt_logprobs": 1},
            },
            "prompt_logprobs has 1 positions, prompt_token_ids 2",
        ),
    ],
)
def test_bad_completion_body_is_refused(fields: Any, message: str) -> None:
    assert message in refusal(fields, endpoint="completions").message


@pytest.mark.parametrize("fields", [{"model": "x"}, {"chat_request": {"model": "x"}}])
def test_unknown_model_is_not_found(fields: Any) -> None:
    error = refusal({"generate_response": response()} | fields)
    assert isinstance(error, ModelNotFoundError)
    assert "'x'" in error.message
    assert f"'{MODEL}'" in error.message


@pytest.mark.parametrize(
    ("num_candidates", "request_fields", "is_served"),
    [
        (21, {}, True),
        (22, {}, False),
        (31, {"allowed_token_ids": list(range(30))}, True),
        (32, {"allowed_token_ids": list(range(30))}, False),
        (41, {"logprob_token_ids": list(range(40))}, True),
    ],
)
def test_most_candidates_follow_the_request(
    num_candidates: int, request_fields: Any, is_served: bool
) -> None:
    body = {
        "generate_response": response(logprobs=content(num_candidates)),
        "chat_request": {"logprobs": True, "top_logprobs": 20} | request_fields,
    }
    if not is_served:
        assert "candidates" in refusal(body).message
        return
    reply = json.loads(DERENDERER.derender_chat(json.dumps(body).encode()))
    assert len(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) >= 20


def test_only_the_choices_that_came_are_shown() -> None:
    body = {"generate_response": response(index=3), "chat_request": {"n": 5}}
    reply = json.loads(DERENDERER.derender_chat(json.dumps(body).encode()))
    assert [choice["index"] for choice in reply["choices"]] == [3]


def test_null_fields_of_the_openai_request_are_absent_ones() -> None:
    nulls = dict.fromkeys(["model", "n", "stop", "skip_special_tokens", "min_tokens", "logprobs"])
    options = {"include_usage": None, "continuous_usage_stats": None}
    asked = {**nulls, "stream_options": options}
    body = {"generate_response": response(), "chat_request": asked}
    reply = json.loads(DERENDERER.derender_chat(json.dumps(body).encode()))
    assert reply["choices"][0]["message"]["content"] == "ab"


def test_usage_details_of_other_engines_do_not_matter() -> None:
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None, "x": "y"}}
    body = {"generate_response": response() | {"usage": usage}}
    reply = json.loads(DERENDERER.derender_chat(json.dumps(body).encode()))
    assert reply["usage"]["prompt_tokens"] == 3


def test_no_limit_on_candidates_where_the_operator_says_so() -> None:
    derenderer = toy_derenderer(TABLES["byte_level"], max_logprobs=-1)
    body = {"generate_response": response(logprobs=content(200))}
    reply = json.loads(derenderer.derender_chat(json.dumps(body).encode()))
    assert len(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 200


def test_another_tokenizers_request_is_refused() -> None:
    spec = ReplySpec(endpoint="chat", model=MODEL, tokenizer_fingerprint="0" * 16)
    with pytest.raises(InvalidRequestError, match="rendered with tokenizer 0000"):
        DERENDERER.whole(spec, [answer([97])], request_id="r", created=1)
    with pytest.raises(InvalidRequestError, match="rendered with tokenizer 0000"):
        DERENDERER.open(spec, request_id="r", created=1, prompts=[[1]])


def test_stop_strings_of_a_spec_are_bounded_too() -> None:
    spec = ReplySpec(endpoint="chat", model=MODEL, stop=["x"] * 17)
    with pytest.raises(InvalidRequestError, match="stop has 17 strings; at most 16"):
        DERENDERER.open(spec, request_id="r", created=1, prompts=[[1]])


def test_chat_reply_has_one_answer() -> None:
    spec = ReplySpec(endpoint="chat", model=MODEL)
    for answers in ([], [answer([97]), answer([98])]):
        with pytest.raises(InvalidRequestError, match="cannot have"):
            DERENDERER.whole(spec, answers, request_id="r", created=1)
