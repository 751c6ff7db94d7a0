import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.logprobs import Logprobs, pack_logprobs
from triptych.reply import Endpoint, ReplySpec
from triptych_derender.token_table import TokenTable
from unit.derender.toys import TABLES, answer, cut, eos_id, score, toy_derenderer, whole_body

BYTES = TABLES["byte_level"]
FALLBACK = TABLES["byte_fallback"]


def logprobs_of(table: TokenTable, position: list[tuple[int, float, int]], **fields: Any) -> Any:
    base: dict[str, Any] = {"endpoint": "completions", "model": "toy", "logprobs": True}
    spec = ReplySpec(**base | fields)
    generated = answer([position[0][0]], logprobs=pack_logprobs([position]))
    return whole_body(toy_derenderer(table), spec, generated)["choices"][0]["logprobs"]


def scored(*token_ids: int) -> list[tuple[int, float, int]]:
    return [(token_id, -0.5 - number, number + 1) for number, token_id in enumerate(token_ids)]


def test_candidates_that_are_part_of_a_character_have_byte_keys() -> None:
    partial = BYTES.bytes_of.index(b" \xf0\x9f")
    shown = logprobs_of(BYTES, scored(0xE2, 0x80, partial, ord("a")))
    assert shown["top_logprobs"] == [
        {"bytes:\\xe2": -0.5, "bytes:\\x80": -1.5, "bytes: \\xf0\\x9f": -2.5, "a": -3.5}
    ]
    assert shown["tokens"] == [""]


def test_taken_keys_fall_back_to_bytes_and_then_to_the_id() -> None:
    piece_b, byte_b = FALLBACK.bytes_of.index(b"b", 256), ord("b")
    unknown = FALLBACK.num_tokens + 1
    shown = logprobs_of(FALLBACK, scored(piece_b, byte_b, unknown, unknown + 1))
    assert shown["top_logprobs"] == [
        {"b": -0.5, "bytes:b": -1.5, "bytes:": -2.5, f"token_id:{unknown + 1}": -3.5}
    ]


def test_byte_keys_spell_a_backslash_so_that_none_is_ambiguous() -> None:
    piece = FALLBACK.num_tokens + 5
    shown = logprobs_of(FALLBACK, scored(0x5C, 0xFF, piece))
    assert list(shown["top_logprobs"][0]) == ["\\", "bytes:\\xff", "bytes:"]


@given(st.lists(st.integers(0, FALLBACK.num_tokens + 30), min_size=1, max_size=21, unique=True))
def test_no_candidate_is_ever_lost(token_ids: list[int]) -> None:
    shown = logprobs_of(FALLBACK, scored(*token_ids), skip_special_tokens=False)
    assert list(shown["top_logprobs"][0].values()) == [-0.5 - n for n in range(len(token_ids))]
    assert next(iter(shown["top_logprobs"][0].values())) == shown["token_logprobs"][0]


@pytest.mark.parametrize(("k", "num_shown"), [(0, 1), (1, 2), (3, 4), (9, 4), (None, 4), (-1, 4)])
def test_completions_show_the_first_k_plus_one(k: int | None, num_shown: int) -> None:
    shown = logprobs_of(BYTES, scored(97, 98, 99, 100), top_logprobs=k)
    assert list(shown["top_logprobs"][0]) == ["a", "b", "c", "d"][:num_shown]


def test_ids_as_strings_leave_offsets_of_the_real_text() -> None:
    token_ids = [BYTES.bytes_of.index(raw) for raw in (b"abc", b" the")]
    spec = ReplySpec(
        endpoint="completions",
        model="toy",
        logprobs=True,
        top_logprobs=0,
        return_tokens_as_token_ids=True,
    )
    generated = answer(token_ids, logprobs=score(token_ids))
    (choice,) = whole_body(toy_derenderer(BYTES), spec, generated)["choices"]
    names = [f"token_id:{token_id}" for token_id in token_ids]
    assert choice["logprobs"]["tokens"] == names
    assert [list(each) for each in choice["logprobs"]["top_logprobs"]] == [[n] for n in names]
    assert choice["logprobs"]["text_offset"] == [0, 3]


def test_percent_signs_in_tokens_are_no_templates() -> None:
    shown = logprobs_of(BYTES, scored(ord("%"), ord("b")))
    assert shown["top_logprobs"] == [{"%": -0.5, "b": -1.5}]


def echo_spec(**fields: Any) -> ReplySpec:
    base: dict[str, Any] = {"endpoint": "completions", "model": "toy", "echo": True}
    return ReplySpec(**base | fields)


def prompt_scores(token_ids: list[int]) -> Logprobs:
    scores = list(score(token_ids).positions())
    return pack_logprobs([[], *scores[1:]])


def test_echo_begins_text_and_arrays_with_the_prompt() -> None:
    prompt, output = list(b"one"), [*b" two", eos_id(BYTES)]
    generated = answer(
        output, "stop", prompt=prompt, logprobs=score(output), prompt_logprobs=prompt_scores(prompt)
    )
    spec = echo_spec(logprobs=True, top_logprobs=1, return_token_ids=True)
    (choice,) = whole_body(toy_derenderer(BYTES), spec, generated)["choices"]
    shown = choice["logprobs"]
    assert choice["text"] == "one two"
    assert shown["tokens"] == [*"one", *" two", "</s>"]
    assert shown["text_offset"] == [0, 1, 2, 3, 4, 5, 6, 7]
    for name in ("token_logprobs", "top_logprobs"):
        assert [entry is None for entry in shown[name]] == [True, *[False] * 7]
    assert all(len(each) == 2 for each in shown["top_logprobs"][1:])
    assert (choice["token_ids"], choice["prompt_token_ids"]) == (output, prompt)


def test_echo_with_max_tokens_0_is_the_prompt_alone() -> None:
    for prompt in ([97], list(b"one")):
        generated = answer([], prompt=prompt, prompt_logprobs=prompt_scores(prompt))
        body = whole_body(
            toy_derenderer(BYTES), echo_spec(logprobs=True, top_logprobs=0), generated
        )
        (choice,) = body["choices"]
        assert choice["text"] == bytes(prompt).decode()
        assert len(choice["logprobs"]["tokens"]) == len(prompt)
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert body["usage"]["completion_tokens"] == 0


def test_echo_without_logprobs_shows_only_text() -> None:
    generated = answer(list(b"b"), prompt=list(b"a"))
    (choice,) = whole_body(toy_derenderer(BYTES), echo_spec(), generated)["choices"]
    assert (choice["text"], choice["logprobs"]) == ("ab", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [("byte_fallback", "the the"), ("unigram", "the the"), ("byte_level", " the the")],
)
def test_echo_drops_the_first_space_where_the_decoder_does_for_a_whole_text(
    name: str, text: str
) -> None:
    table = TABLES[name]
    the = table.bytes_of.index(b" the")
    generated = answer(
        [the], prompt=[the], logprobs=score([the]), prompt_logprobs=prompt_scores([the])
    )
    body = whole_body(toy_derenderer(table), echo_spec(logprobs=True, top_logprobs=0), generated)
    (choice,) = body["choices"]
    assert choice["text"] == text
    assert choice["logprobs"]["text_offset"] == [0, len(text) - 4]
    assert choice["logprobs"]["tokens"] == [" the", " the"]


def test_prompt_logprobs_are_strings_by_id_per_choice() -> None:
    prompt = [97, *"é".encode()]
    generated = answer([98], prompt=prompt, prompt_logprobs=prompt_scores(prompt))
    spec = ReplySpec(endpoint="completions", model="toy", prompt_logprobs=True)
    (choice,) = whole_body(toy_derenderer(BYTES), spec, generated)["choices"]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second["195"] == {"logprob": -0.25, "rank": 1, "decoded_token": ""}
    assert third["169"]["decoded_token"] == "é"
    assert list(second) == [str(195), str((195 + 7) % 250), str((195 + 14) % 250)]


def test_prompt_logprobs_come_once_in_a_stream() -> None:
    prompt = [97, 98]
    generated = answer([98], prompt=prompt, prompt_logprobs=prompt_scores(prompt))
    endpoints: tuple[Endpoint, ...] = ("chat", "completions")
    for endpoint in endpoints:
        spec = ReplySpec(endpoint=endpoint, model="toy", prompt_logprobs=True)
        reply = toy_derenderer(BYTES).open(spec, request_id="r", created=1, prompts=[prompt])
        chunks = [json.loads(c) for each in cut(generated, [1]) for c in reply.feed(0, each).chunks]
        shown = [chunk if endpoint == "chat" else chunk["choices"][0] for chunk in chunks]
        assert len(shown[0]["prompt_logprobs"]) == 2
        assert not any("prompt_logprobs" in each for each in shown[1:])
