"""The short way of plain tokens: when it is taken, and that it writes what the general way does."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.errors import InvalidRequestError
from triptych.logprobs import Logprobs
from triptych.reply import ReplySpec, chat_reply_spec
from triptych.response_template import Channel, family_names, find_family
from triptych.wire import ChoiceDelta, FinishReason, GenerateDelta
from triptych_derender.choice import Choice, ChoiceState, open_choice, text_rules
from triptych_derender.derenderer import Derenderer
from triptych_derender.entries import EntryWriter
from triptych_derender.plain import PlainChoice, PlainForm
from triptych_derender.reply_template import ReplyTemplate
from triptych_derender.split_state import SplitRules, SplitState
from unit.derender.channel_toys import (
    EOS_ID,
    PIECES,
    TABLE,
    TOOLS,
    derenderer_of,
    scores,
    spec_of,
    tokens,
)
from unit.derender.toys import MODEL, delta, score, toy_derenderer

DERENDERERS: dict[str, Derenderer] = {
    "none": toy_derenderer(TABLE),
    **{name: derenderer_of(name) for name in family_names()},
}
WORDS = [*PIECES, "ab", " the", "c", "é", "\n", "%b", '"\\', "\u0000"]


@st.composite
def deltas(draw: st.DrawFn, num_choices: int) -> list[GenerateDelta]:
    """A stream of each choice's deltas in any order, some without logprobs, and its end."""
    given_deltas: list[GenerateDelta] = []
    for piece in draw(st.lists(st.sampled_from(WORDS), max_size=16)):
        index = draw(st.integers(0, num_choices - 1))
        ids = tokens(piece, is_long=draw(st.booleans()))
        ids += draw(st.lists(st.integers(200, TABLE.num_tokens + 2), max_size=1))
        cut = draw(st.integers(0, len(ids)))
        is_scored = draw(st.booleans())
        for part in (ids[:cut], ids[cut:]):
            logprobs = score(part, k=draw(st.integers(0, 4))) if is_scored else None
            given_deltas.append(delta(part, index=index, logprobs=logprobs))
    finish: FinishReason = draw(st.sampled_from(["length", "stop"]))
    return [*given_deltas, *(delta([EOS_ID], finish, index=n) for n in range(num_choices))]


@pytest.mark.parametrize("family", DERENDERERS)
@settings(max_examples=60)
@given(data=st.data())
def test_short_way_writes_what_the_general_way_writes(family: str, data: st.DataObject) -> None:
    """``cached_tokens`` are in no chunk, but a delta that has some goes the general way."""
    draw = data.draw
    asked = {
        "n": draw(st.integers(1, 2)),
        "logprobs": draw(st.booleans()),
        "top_logprobs": draw(st.sampled_from([0, 1, 3])),
        "return_token_ids": draw(st.booleans()),
        "return_tokens_as_token_ids": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
        "include_reasoning": draw(st.booleans()),
        "tool_choice": draw(st.sampled_from(["auto", "none"])),
        "stop": draw(st.sampled_from([[], ["abc"], ["c", "\n\n", " t"]])),
        "min_tokens": draw(st.sampled_from([0, 2])),
    }
    spec = spec_of(**asked)
    short, general = (opened(DERENDERERS[family], spec) for _ in range(2))
    for each in draw(deltas(spec.n)):
        expected = general.feed(0, msgspec.structs.replace(each, cached_tokens=1))
        assert short.feed(0, each) == expected


def opened(derenderer: Derenderer, spec: ReplySpec) -> Any:
    return derenderer.open(spec, request_id='"\\u0000"', created=1, prompts=[[1, 2]])


#: A chunk that shows nothing but its channel, its text, its logprobs and its token ids.
def form_of(channel: Channel) -> PlainForm:
    return PlainForm(
        parts=(channel.encode(), b" ", b" ", b""),
        logprobs_parts=None,
        templates=EntryWriter(TABLE, as_token_ids=False).templates,
        num_shown=1,
        shows_ids=False,
    )


def plain_after(text: str, family: str | None, **asked: Any) -> tuple[Choice, PlainChoice]:
    """A choice that has read ``text``."""
    split = None
    if family is not None:
        found = find_family(family, Path())
        assert found is not None
        split = SplitRules(ReplyTemplate(found), tools=TOOLS)
    spec = chat_reply_spec({"logprobs": True, **asked}, model=MODEL)
    state = ChoiceState(split=None if split is None else SplitState())
    choice = open_choice(state, text_rules(spec, TABLE, split))
    choice.feed(ChoiceDelta(index=0, token_ids=tokens(text)))
    return choice, PlainChoice(choice, form_of)


def chunk(plain: PlainChoice, ids: list[int], **fields: Any) -> bytes | None:
    return plain.chunk(ChoiceDelta(index=0, token_ids=ids, **fields))


@pytest.mark.parametrize(
    ("family", "before", "text", "channel"),
    [
        (None, "", "ab", "content"),
        (None, "<", " the ", "content"),
        (None, "", "é世", "content"),
        ("qwen3", "ab", " the", "content"),
        ("qwen3", "<think>ab", " the", "reasoning_content"),
        ("qwen3", "<think>ab</think>c", "é世", "content"),
        ("think", "a", "[", "content"),
        ("mistral", "a", "<", "content"),
        ("gpt-oss", "<|channel|>final<|message|>a", "to=functions.", "content"),
        ("gpt-oss", "<|channel|>analysis<|message|>a", "b\nc", "reasoning_content"),
        ("deepseek-r1", "<think>a", " the", "reasoning_content"),
        ("deepseek-r1", "<think>a</think>b", " the", "content"),
        ("llama3", "a", '{"name":', "content"),  # no call: one has no text before it
    ],
)
def test_plain_text_goes_the_short_way(
    family: str | None, before: str, text: str, channel: str
) -> None:
    _, plain = plain_after(before, family)
    expected = f"{channel}{json.dumps(text, ensure_ascii=False)} null null"
    assert chunk(plain, tokens(text)) == expected.encode()


@pytest.mark.parametrize(
    ("family", "before", "ids"),
    [
        (None, "", tokens("é", is_long=False)[:1]),  # half a character
        (None, "", [TABLE.num_tokens]),  # unknown
        (None, "", [EOS_ID]),  # special
        (None, "", []),
        ("qwen3", "", tokens("a")),  # the first text
        ("qwen3", "a", tokens(" ")),  # may be white space after it
        ("qwen3", "\n", tokens(" the")),  # white space before an answer
        ("qwen3", "a ", tokens("b")),  # white space waits
        ("qwen3", "a", tokens("<")),  # may begin a tag
        ("qwen3", "a<", tokens("b")),  # a tag waits
        ("qwen3", "<tool_call>", tokens("{")),
        ("qwen3", "a<think>", tokens("b")),  # the first text of its channel
        ("gpt-oss", "", tokens("b")),  # outside of all channels
    ],
)
def test_other_tokens_go_the_general_way(family: str | None, before: str, ids: list[int]) -> None:
    choice, plain = plain_after(before, family)
    state_before = repr(choice.state())
    assert chunk(plain, ids) is None
    assert repr(choice.state()) == state_before


def test_other_deltas_go_the_general_way() -> None:
    ids = tokens("ab")
    _, plain = plain_after("", None)
    assert chunk(plain, ids, finish_reason="length") is None
    _, plain = plain_after("", None, stop=["bc"])
    assert chunk(plain, ids) is None, "a stop string may begin"
    _, plain = plain_after("", None, stop=["ab"])
    assert chunk(plain, ids) is None, "a stop string"
    _, plain = plain_after("<think>a", "qwen3", include_reasoning=False)
    assert chunk(plain, ids) is None, "a channel that the client does not see"
    choice, plain = plain_after("", None)
    choice.feed(ChoiceDelta(index=0, token_ids=ids, finish_reason="length"))
    assert chunk(plain, ids) is None, "the choice is done"


@pytest.mark.parametrize(
    "logprobs",
    [
        scores(tokens("ab")[:-1]),
        scores([3, *tokens("ab")[1:]]),
        Logprobs(counts=[0] * len(tokens("ab")), token_ids=[], logprobs=[], ranks=[]),
    ],
)
def test_logprobs_of_other_tokens_are_refused(logprobs: Logprobs) -> None:
    reply = opened(DERENDERERS["none"], spec_of())
    reply.feed(0, delta(tokens("c"), logprobs=scores(tokens("c"))))
    with pytest.raises(InvalidRequestError, match=r"choices\[0\]\.logprobs"):
        reply.feed(0, delta(tokens("ab"), logprobs=logprobs))


def test_unknown_prompt_is_refused() -> None:
    reply = opened(DERENDERERS["none"], spec_of())
    reply.feed(0, delta(tokens("c")))
    with pytest.raises(InvalidRequestError, match="prompt_index is 1"):
        reply.feed(1, delta(tokens("ab")))


def test_work_that_was_plain_counts() -> None:
    reply = opened(DERENDERERS["none"], spec_of(stream_options={"include_usage": True}))
    for text in ("a", "b", " the"):
        reply.feed(0, delta(tokens(text)))
    *_, usage = reply.feed(0, delta([EOS_ID], "stop")).chunks
    assert msgspec.json.decode(usage)["usage"]["completion_tokens"] == 4
