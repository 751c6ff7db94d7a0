from typing import Any

import pytest

from triptych.logprobs import pack_logprobs
from triptych.reply import Endpoint, ReplySpec
from unit.derender.toys import TABLES, answer, eos_id, score, toy_derenderer, whole_body

BYTES = TABLES["byte_level"]


def content_of(token_ids: list[int], positions: Any = None, **fields: Any) -> Any:
    base: dict[str, Any] = {"endpoint": "chat", "model": "toy", "logprobs": True}
    scores = pack_logprobs(positions) if positions else score(token_ids)
    body = whole_body(
        toy_derenderer(BYTES), ReplySpec(**base | fields), answer(token_ids, logprobs=scores)
    )
    return body["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 20])
def test_chat_shows_the_first_k_sampled_first(k: int) -> None:
    position = [(97, -9.0, 50), (98, -0.5, 1), (99, -1.5, 2), (100, -2.5, 3)]
    (entry,) = content_of([97], [position], top_logprobs=k)
    assert [each["token_id"] for each in entry["top_logprobs"]] == [97, 98, 99, 100][:k]
    assert (entry["token"], entry["logprob"]) == ("a", -9.0)


def test_entry_has_its_own_bytes_and_id() -> None:
    first, second, third = content_of([*"世".encode()], top_logprobs=1)
    assert [each["token"] for each in (first, second, third)] == ["", "", "世"]
    assert [each["bytes"] for each in (first, second, third)] == [[0xE4], [0xB8], [0x96]]
    assert first["token_id"] == 0xE4
    assert list(third["top_logprobs"][0]) == ["token", "logprob", "bytes", "token_id"]


def test_special_tokens_and_unknown_ids_are_shown() -> None:
    unknown = BYTES.num_tokens + 3
    eos, hole = content_of([eos_id(BYTES), unknown], top_logprobs=0)
    assert (eos["token"], bytes(eos["bytes"])) == ("</s>", b"</s>")
    assert (hole["token"], hole["bytes"], hole["token_id"]) == ("", [], unknown)


def test_bytes_stay_those_of_the_token_when_strings_are_ids() -> None:
    (entry,) = content_of([97], top_logprobs=1, return_tokens_as_token_ids=True)
    assert (entry["token"], entry["bytes"]) == ("token_id:97", [97])


@pytest.mark.parametrize("value", [float("-inf"), -9999.0])
def test_minus_infinity_is_minus_9999(value: float) -> None:
    (entry,) = content_of([97], [[(97, value, 9), (98, value, 8)]], top_logprobs=2)
    assert [entry["logprob"], entry["top_logprobs"][1]["logprob"]] == [-9999.0, -9999.0]


def test_logprobs_are_null_unless_asked_and_given() -> None:
    derenderer = toy_derenderer(BYTES)
    asked = ReplySpec(endpoint="chat", model="toy", logprobs=True, top_logprobs=0)
    plain = ReplySpec(endpoint="chat", model="toy")
    for spec, scores in ((asked, None), (plain, score([97]))):
        body = whole_body(derenderer, spec, answer([97], logprobs=scores))
        assert body["choices"][0]["logprobs"] is None


def test_same_value_is_the_same_text_everywhere() -> None:
    value = -0.10000000149011612  # float32(-0.1)
    generated = answer([97], logprobs=pack_logprobs([[(97, value, 1)]]))
    derenderer = toy_derenderer(BYTES)
    endpoints: tuple[Endpoint, ...] = ("chat", "completions")
    for endpoint in endpoints:
        spec = ReplySpec(endpoint=endpoint, model="toy", logprobs=True, top_logprobs=1)
        body = derenderer.whole(spec, [generated], request_id="r", created=1)
        assert body.count(b"-0.1") == 2
        assert b"-0.10" not in body
