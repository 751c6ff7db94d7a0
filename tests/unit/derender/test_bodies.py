"""The JSON endpoints, whole and chunk by chunk, where the recordings have no example."""

import json
from typing import Any

import msgspec
import pytest

from triptych.json_bodies import encode_generate_chunk, encode_generate_response
from triptych.logprobs import pack_logprobs
from triptych.reply import chat_reply_spec, completion_reply_spec
from triptych.wire import count_usage
from unit.derender.toys import (
    TABLES,
    answer,
    cut,
    join_chunks,
    score,
    toy_derenderer,
    whole_body,
)

DERENDERER = toy_derenderer(TABLES["byte_level"])
PROMPT = list(b"one")
OUTPUT = list(" twö<end>three".encode())
ASKED: dict[str, Any] = {
    "model": "toy",
    "logprobs": 2,
    "stop": "<end>",
    "prompt_logprobs": 2,
    "return_token_ids": True,
}


def generated() -> Any:
    scores = list(score(PROMPT).positions())
    return answer(
        OUTPUT,
        prompt=PROMPT,
        logprobs=score(OUTPUT),
        prompt_logprobs=pack_logprobs([[], *scores[1:]]),
    )


def derender(endpoint: str, body: dict[str, Any]) -> Any:
    chat, completion = DERENDERER.derender_chat, DERENDERER.derender_completion
    serve = chat if endpoint == "chat" else completion
    return json.loads(serve(json.dumps(body).encode()))


def derender_stream(endpoint: str, request: dict[str, Any], cuts: range) -> list[Any]:
    """One call a generate event, carrying the state; the last event holds usage alone.

    The first event alone has the prompt's ids, as in a stream of generate.
    """
    deltas = cut(generated(), cuts)
    events = [
        encode_generate_chunk(each, None, None if number else PROMPT)
        for number, each in enumerate(deltas)
    ]
    last = msgspec.structs.replace(deltas[-1], choices=[])
    events.append(encode_generate_chunk(last, count_usage(len(PROMPT), len(OUTPUT)), None))
    state, chunks = None, []
    for event in events:
        body = {
            "stream": True,
            "generate_chunk": json.loads(event),
            "stream_state": state,
            f"{endpoint}_request": request,
        }
        answered = derender(endpoint, body)
        state = answered["stream_state"]
        chunks.append(answered["chunk"])
    return chunks


@pytest.mark.parametrize("echo", [False, True])
def test_completion_by_hand_equals_the_whole_one(echo: bool) -> None:
    request = ASKED | {"echo": echo}
    spec = completion_reply_spec(request, model="toy")
    expected = whole_body(DERENDERER, spec, generated())
    response = json.loads(encode_generate_response(generated()))
    body = {"generate_response": response, "completion_request": request}
    whole = derender("completion", body)
    assert whole["choices"] == expected["choices"]
    assert whole["usage"] == expected["usage"]
    chunks = derender_stream("completion", request, range(1, len(OUTPUT)))
    joined = join_chunks(chunks)[0]
    (choice,) = expected["choices"]
    assert joined.text == choice["text"] == ("one twö" if echo else " twö")
    assert joined.logprobs == choice["logprobs"]
    assert joined.token_ids == choice["token_ids"] == OUTPUT[:10]
    assert joined.finish_reasons == [("stop", "<end>")]
    assert chunks[0]["choices"][0]["prompt_logprobs"] == choice["prompt_logprobs"]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == PROMPT
    assert chunks[-1]["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"] == 10


def test_chat_by_hand_equals_the_whole_one() -> None:
    request = ASKED | {"logprobs": True, "top_logprobs": 2}
    spec = chat_reply_spec(request, model="toy")
    expected = whole_body(DERENDERER, spec, generated())
    response = json.loads(encode_generate_response(generated()))
    whole = derender("chat", {"generate_response": response, "chat_request": request})
    for name in ("choices", "usage", "prompt_logprobs", "prompt_token_ids"):
        assert whole[name] == expected[name]
    chunks = derender_stream("chat", request, range(1, len(OUTPUT), 3))
    joined = join_chunks(chunks)[0]
    (choice,) = expected["choices"]
    assert joined.text == choice["message"]["content"] == " twö"
    assert joined.logprobs == choice["logprobs"]
    assert joined.finish_reasons == [("stop", "<end>")]
    assert chunks[0]["prompt_logprobs"] == expected["prompt_logprobs"]
    assert all("prompt_logprobs" not in chunk for chunk in chunks[1:])


@pytest.mark.parametrize(
    ("fields", "num_prompt_tokens"),
    [
        ({}, 3),
        ({"prompt_tokens": 7}, 7),
        ({"prompt_tokens": [8]}, 8),
        ({"prompt_token_ids": [1, 2, 3]}, 3),
        ({"prompt_token_ids": [[1, 2, 3]], "prompt_tokens": None}, 3),
    ],
)
def test_prompt_facts_may_come_flat_or_as_a_list(
    fields: dict[str, Any], num_prompt_tokens: int
) -> None:
    response = json.loads(encode_generate_response(generated()))
    whole = derender("completion", {"generate_responses": [response]} | fields)
    assert whole["usage"]["prompt_tokens"] == num_prompt_tokens


def test_prompt_logprobs_without_prompt_ids_are_still_shown() -> None:
    response = json.loads(encode_generate_response(generated())) | {"prompt_token_ids": None}
    shown = derender("chat", {"generate_response": response})["prompt_logprobs"]
    assert shown[0] is None
    assert [next(iter(each.values()))["decoded_token"] for each in shown[1:]] == ["n", "e"]


def test_without_the_openai_request_all_that_came_is_shown() -> None:
    response = json.loads(encode_generate_response(generated()))
    chat = derender("chat", {"generate_response": response})
    entries = chat["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == score(OUTPUT).counts
    assert len(chat["prompt_logprobs"]) == len(PROMPT)
