"""Faults of other systems in what a reply says of its end: derender's JSON endpoints."""

import json
from typing import Any

import pytest

from unit.derender.toys import TABLES, eos_id, toy_derenderer

TABLE = TABLES["byte_level"]
DERENDERER = toy_derenderer(TABLE)

#: What ended the answer, generate's own reasons, and the reply's.
ENDS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, Any]]] = [
    ("eos", {"token_ids": [97, eos_id(TABLE)], "finish_reason": "stop"}, {}, ("stop", None)),
    (
        "stop token",
        {"token_ids": [97, 10], "finish_reason": "stop", "stop_reason": 10},
        {"stop_token_ids": [10]},
        ("stop", 10),
    ),
    (
        "stop string",
        {"token_ids": [97, 98, 99], "finish_reason": "length"},
        {"stop": ["bc"]},
        ("stop", "bc"),
    ),
    ("length", {"token_ids": [97], "finish_reason": "length"}, {}, ("length", None)),
    ("abort", {"token_ids": [97], "finish_reason": "abort"}, {}, ("abort", None)),
]


@pytest.mark.parametrize("endpoint", ["chat", "completion"])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("choice", "request_", "end"), [case[1:] for case in ENDS])
def test_case_37_stop_reason_is_the_id_the_string_or_null(
    endpoint: str,
    is_stream: bool,
    choice: dict[str, Any],
    request_: dict[str, Any],
    end: tuple[str, Any],
) -> None:
    answer = {"request_id": "r", "choices": [{"index": 0, **choice}]}
    sent = (
        {"stream": True, "generate_chunk": answer} if is_stream else {"generate_response": answer}
    )
    body = json.dumps(sent | {f"{endpoint}_request": request_}).encode()
    chat, completion = DERENDERER.derender_chat, DERENDERER.derender_completion
    reply = json.loads((chat if endpoint == "chat" else completion)(body))
    (shown,) = (reply["chunk"] if is_stream else reply)["choices"]
    assert (shown["finish_reason"], shown["stop_reason"]) == end
    text = (
        shown["text"] if "text" in shown else shown["delta" if is_stream else "message"]["content"]
    )
    assert text == "a"
