"""Answers that do not fit themselves, states that are not ours: a refusal or a plain reply."""

import base64
import contextlib
import json
import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.errors import InvalidRequestError
from unit.derender.toys import TABLES, toy_derenderer

TABLE = TABLES["byte_level"]
DERENDERER = toy_derenderer(TABLE)
ENDPOINTS = ("chat", "completion")


def choice(token_ids: list[int], **fields: Any) -> dict[str, Any]:
    return {"index": 0, "token_ids": token_ids, "finish_reason": "length", **fields}


def scored(*token_ids: int, num_candidates: int = 1) -> dict[str, Any]:
    def candidate(token_id: int) -> dict[str, Any]:
        return {"token_id": token_id, "logprob": -1.0, "rank": 1}

    return {
        "content": [
            candidate(each) | {"top_logprobs": [candidate(each + n) for n in range(num_candidates)]}
            for each in token_ids
        ]
    }


def derender(
    endpoint: str,
    *choices: dict[str, Any],
    request: dict[str, Any] | None = None,
    is_stream: bool = False,
    state: str | None = None,
) -> Any:
    answer = {"request_id": "r", "choices": list(choices)}
    body: dict[str, Any] = {f"{endpoint}_request": request}
    if is_stream:
        body |= {"stream": True, "generate_chunk": answer, "stream_state": state}
    else:
        body |= {"generate_response": answer}
    chat, completion = DERENDERER.derender_chat, DERENDERER.derender_completion
    return json.loads((chat if endpoint == "chat" else completion)(json.dumps(body).encode()))


def text_of(shown: dict[str, Any]) -> str:
    if "text" in shown:
        return str(shown["text"])
    return str(shown["message" if "message" in shown else "delta"]["content"])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("token_ids", "logprobs", "says"),
    [
        ([97, 98], scored(97), "logprobs has 1 positions, choices[0].token_ids 2 ids"),
        ([97], scored(97, 98), "logprobs has 2 positions, choices[0].token_ids 1 ids"),
        ([], scored(97), "logprobs has 1 positions, choices[0].token_ids 0 ids"),
        ([97], {"content": []}, "logprobs has 0 positions, choices[0].token_ids 1 ids"),
        ([97], scored(98), "at position 0 scores 98, choices[0].token_ids[0] is 97"),
    ],
)
def test_logprobs_that_do_not_belong_to_the_ids_are_refused(
    endpoint: str, is_stream: bool, token_ids: list[int], logprobs: Any, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        derender(endpoint, choice(token_ids, logprobs=logprobs), is_stream=is_stream)
    assert says in caught.value.message
    assert caught.value.param == "choices[0].logprobs"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_hundred_thousand_candidates_are_refused_with_the_limit(
    endpoint: str, is_stream: bool
) -> None:
    logprobs = scored(97, num_candidates=100_000)
    with pytest.raises(InvalidRequestError) as caught:
        derender(endpoint, choice([97], logprobs=logprobs), is_stream=is_stream)
    assert "has 100000 candidates, limit is 21 (max_logprobs" in caught.value.message
    assert str(caught.value.param).endswith("choices[0].logprobs.content[0]")


@pytest.mark.parametrize("token_id", [TABLE.num_tokens, TABLE.num_tokens + 999, 2**31 - 1])
def test_case_54_an_id_beyond_the_vocabulary_shows_nothing_and_keeps_its_id(token_id: int) -> None:
    logprobs = scored(97, token_id, 98)
    request = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    (shown,) = derender("chat", choice([97, token_id, 98], logprobs=logprobs), request=request)[
        "choices"
    ]
    entry = shown["logprobs"]["content"][1]
    assert shown["message"]["content"] == "ab"
    assert shown["token_ids"] == [97, token_id, 98]
    assert (entry["token"], entry["bytes"], entry["token_id"]) == ("", [], token_id)
    (shown,) = derender(
        "completion", choice([97, token_id, 98], logprobs=logprobs), request={"logprobs": 0}
    )["choices"]
    assert shown["text"] == "ab"
    assert shown["logprobs"]["tokens"] == ["a", "", "b"]
    assert shown["logprobs"]["top_logprobs"][1] == {"bytes:": -1.0}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("finish_reason", ["stop", "length", "abort"])
@pytest.mark.parametrize("logprobs", [None, {"content": []}, {"content": None}])
def test_a_choice_without_tokens_has_an_empty_text_and_its_finish_reason(
    endpoint: str, is_stream: bool, finish_reason: str, logprobs: Any
) -> None:
    sent = choice([], finish_reason=finish_reason, logprobs=logprobs)
    reply = derender(endpoint, sent, request={"logprobs": True}, is_stream=is_stream)
    (shown,) = (reply["chunk"] if is_stream else reply)["choices"]
    assert (text_of(shown), shown["finish_reason"], shown["logprobs"]) == ("", finish_reason, None)


REQUEST = {"logprobs": True, "top_logprobs": 2, "stop": ["<end>"], "n": 2}


def a_state() -> str:
    """Pending bytes, held-back text, waiting entries, two choices."""
    sent = [0x3C, 0x65, 0xF0]
    both = [choice(sent, index=n, finish_reason=None, logprobs=scored(*sent)) for n in (0, 1)]
    reply = derender("chat", *both, request=REQUEST, is_stream=True)
    return str(reply["stream_state"])


STATE = a_state()


def packed(content: bytes) -> str:
    """A state with a right checksum, as one who read the source would forge it."""
    origin = f"{TABLE.fingerprint} None".encode()
    content = b"\0" + content  # not compressed
    checked = zlib.crc32(origin + b"\0" + content).to_bytes(4, "big") + content
    return STATE[:3] + base64.urlsafe_b64encode(checked).decode()


def feed(state: str) -> Any:
    return derender("chat", choice([98]), request=REQUEST, is_stream=True, state=state)


@pytest.mark.parametrize("length", range(len(STATE)))
def test_a_truncated_state_is_refused(length: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        feed(STATE[:length])
    assert caught.value.param == "stream_state"


def columns(num: int, token_id: int = 97) -> bytes:
    return struct.pack(f"<{num}I{num}f", *[token_id] * num, *[-1.0] * num)


#: Fields of a choice's state, or of its content's lane, as a forger may set them.
FORGED: list[dict[str, Any]] = [
    {"held": b"\xff" * 5000},
    {"tail": "x" * 100_000},
    {"held": b"a"},
    {"tail": "<", "text_len": 0},
    {"text_len": -5},
    {"num_tokens": -1},
    {"waiting": [[97, columns(1)[:-4], 0, 1, b"", None]]},
    {"waiting": [[97, "x", 0, 1, b"", None]]},
    {"waiting": [[-1, columns(1), 0, 1, b"", None]]},
    {"waiting": [[97, columns(1), -7, 1, b"", None]]},
    {"waiting": [[97, columns(1), 9, -1, b"", None]]},
    {"waiting": [[97, columns(1), 0, 9, b"", None]]},
    {"waiting": [[97, columns(1), 0, 0, b"a", None]]},
    {"waiting": [[97, columns(4), 0, 0, b"", None]]},
    {"waiting": [[97, columns(1, 2**31), 0, 1, b"", None]]},
    {"waiting": [[2**40, columns(1), 0, 1, b"", None]]},
    {"waiting": [[97, columns(1), 0, 1, b"\xe4" * 9999, None]]},
    {"waiting": [[97, columns(9999), 0, 1, b"", None]]},
    {"waiting": [[97, columns(1), 0, 0, b"", None]] * 100},
    {"split": [[None, False, ""], b"", [b"", []], [], [], None, 0]},
]
LANE = {"held": b"", "tail": "", "text_len": 0, "waiting": []}
CHOICE = {"num_tokens": 0, "is_done": False, "is_cut": False, "split": None}


def state_with(fields: dict[str, Any]) -> str:
    lane = [fields.get(name, value) for name, value in LANE.items()]
    choice = [fields.get(name, value) for name, value in CHOICE.items()]
    return packed(msgspec.msgpack.encode([{0: [{"content": lane}, *choice]}]))


@pytest.mark.parametrize("fields", FORGED, ids=lambda fields: next(iter(fields)))
def test_a_forged_state_with_a_right_checksum_is_refused(fields: dict[str, Any]) -> None:
    state = state_with(fields)
    with pytest.raises(InvalidRequestError) as caught:
        feed(state)
    assert caught.value.param == "stream_state"


def test_the_forged_fields_are_those_of_a_state() -> None:
    assert text_of(feed(state_with({}))["chunk"]["choices"][0]) == "b"


@given(st.binary(max_size=80))
@settings(max_examples=200)
def test_any_bytes_as_a_state_are_answered_or_refused(content: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        feed(packed(content))


def test_a_state_that_holds_text_back_needs_the_stop_string_that_it_waits_for() -> None:
    """Otherwise the held text would come after the text that follows it."""
    for stop in ([], ["nd>"], ["<x"]):
        with pytest.raises(InvalidRequestError, match="stop string that this request does not"):
            derender(
                "chat",
                choice([98]),
                request=REQUEST | {"stop": stop},
                is_stream=True,
                state=STATE,
            )
