"""What holds for every output, well- and ill-formed, however its tokens and deltas are cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.response_template import family_names
from unit.derender.channel_toys import (
    CHANNELS,
    EOS_ID,
    PIECES,
    TABLE,
    Reply,
    answered,
    derenderer_of,
    spec_of,
    stateless,
    streamed,
    tokens,
    whole,
)

DERENDERERS = {name: derenderer_of(name) for name in family_names()}
NUM_TOKENS = TABLE.num_tokens


@st.composite
def outputs(draw: st.DrawFn) -> list[int]:
    """Token ids: pieces cut into long tokens or bytes, and ids at random."""
    ids: list[int] = []
    for piece in draw(st.lists(st.sampled_from(PIECES), max_size=8)):
        ids += tokens(piece, is_long=draw(st.booleans()))
        ids += draw(st.lists(st.integers(200, NUM_TOKENS), max_size=1))
    return ids


def text_of(raw: bytes) -> str:
    return raw.decode(errors="replace")


def check_channels(reply: Reply, ids: list[int]) -> None:
    """Joined bytes are the channel's text; all channels are all tokens."""
    assert set(reply.logprobs) <= set(CHANNELS)
    assert text_of(reply.raw("content")) == reply.content
    assert text_of(reply.raw("reasoning_content")) == reply.reasoning
    parts: dict[float, dict[str, Any]] = {}  # the values of `scores` tell the positions apart
    for channel in CHANNELS:
        for entry in reply.logprobs.get(channel, []):
            assert channel not in parts.setdefault(-entry["logprob"], {})
            parts[-entry["logprob"]][channel] = entry
    for position, token_id in enumerate(ids):
        own = parts.pop(0.25 * position).values()
        assert {entry["token_id"] for entry in own} == {token_id}
        raw = [byte for entry in own for byte in entry["bytes"]]
        assert sorted(raw) == sorted(TABLE.token_bytes(token_id))
    assert not parts
    assert reply.token_ids == ids


@pytest.mark.parametrize("family", DERENDERERS)
@settings(max_examples=40)
@given(data=st.data())
def test_channels_hold_all_tokens_and_any_cut_gives_the_same(
    family: str, data: st.DataObject
) -> None:
    derenderer = DERENDERERS[family]
    ids = data.draw(outputs())
    finish = data.draw(st.sampled_from(["length", "stop"]))
    ids += [EOS_ID] if finish == "stop" else []
    spec = spec_of(
        tool_choice=data.draw(st.sampled_from(["auto", "none"])),
        parallel_tool_calls=data.draw(st.booleans()),
        skip_special_tokens=data.draw(st.booleans()),
    )
    given_answer = answered(ids, finish)
    reply = whole(derenderer, spec, given_answer)
    check_channels(reply, ids)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6)) or range(len(ids))
    assert same(streamed(derenderer, spec, given_answer, cuts)) == same(reply)
    assert same(stateless(derenderer, spec, given_answer, cuts)[0]) == same(reply)


def same(reply: Reply) -> Any:
    """All of a reply; channels without entries need not be there."""
    filled = {name: entries for name, entries in reply.logprobs.items() if entries}
    return reply.content, reply.reasoning, reply.calls, filled, reply.token_ids, reply.finish


@pytest.mark.parametrize("family", DERENDERERS)
@settings(max_examples=40)
@given(data=st.data())
def test_hidden_reasoning_leaves_no_trace(family: str, data: st.DataObject) -> None:
    """Everything that is not hidden is as in the reply that shows reasoning."""
    derenderer, ids = DERENDERERS[family], data.draw(outputs())
    given_answer = answered(ids)
    shown = whole(derenderer, spec_of(), given_answer)
    spec = spec_of(include_reasoning=False)
    body = json.loads(derenderer.whole(spec, [given_answer], request_id="r", created=1))
    (choice,) = body["choices"]
    hidden = whole(derenderer, spec, given_answer)
    assert set(hidden.logprobs) <= {"content", "tool_calls"}
    assert not choice["message"]["reasoning_content"]
    assert (hidden.content, hidden.calls) == (shown.content, shown.calls)
    for channel in ("content", "tool_calls"):
        assert hidden.raw(channel) == shown.raw(channel)
        for ours, theirs in zip(
            hidden.logprobs.get(channel, []), shown.logprobs.get(channel, []), strict=True
        ):
            is_part = theirs["bytes"] != list(TABLE.token_bytes(theirs["token_id"]))
            assert ours["token_id"] == (None if is_part else theirs["token_id"])
            if is_part:
                assert [each["bytes"] for each in ours["top_logprobs"]] == [ours["bytes"]]
    whole_ids = [
        entry["token_id"]
        for channel in ("content", "tool_calls")
        for entry in hidden.logprobs.get(channel, [])
        if entry["token_id"] is not None
    ]
    assert sorted(hidden.token_ids) == sorted(whole_ids)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    assert same(streamed(derenderer, spec, given_answer, cuts)) == same(hidden)
    assert same(stateless(derenderer, spec, given_answer, cuts)[0]) == same(hidden)


@settings(max_examples=40)
@given(data=st.data())
def test_stop_strings_count_in_both_texts_and_at_any_cut(data: st.DataObject) -> None:
    """The answer ends at the first token after which either text holds a stop string."""
    derenderer = DERENDERERS["qwen3"]
    pieces = st.sampled_from(
        ["<think>", "</think>", "ab", "b", "c", "é", " ", "\n", "<tool_call>", "<"]
    )
    ids = [each for piece in data.draw(st.lists(pieces, max_size=12)) for each in tokens(piece)]
    stops = data.draw(
        st.lists(st.sampled_from(["abc", "b b", "\n\n", "cé", "<t"]), min_size=1, max_size=2)
    )
    spec = spec_of(stop=stops)
    given_answer = answered(ids)
    reply = whole(derenderer, spec, given_answer)
    assert not any(stop in text for stop in stops for text in (reply.content, reply.reasoning))
    free = whole(derenderer, spec_of(), given_answer)
    # white space is text before a stop string, and none at the end of an answer
    assert free.content.startswith(reply.content.rstrip())
    assert free.reasoning.startswith(reply.reasoning.rstrip())
    has_stop = any(stop in text for stop in stops for text in (free.content, free.reasoning))
    if has_stop:
        assert reply.finish[0][0] == "stop"
        assert reply.finish[0][1] in stops
    assert ids[: len(reply.token_ids)] == reply.token_ids
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6)) or range(len(ids))
    assert same(streamed(derenderer, spec, given_answer, cuts)) == same(reply)
    assert same(stateless(derenderer, spec, given_answer, cuts)[0]) == same(reply)
