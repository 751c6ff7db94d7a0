"""Joined streams are the whole replies: both made by derender itself, for any cut of the answer."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.client.joining import join_chat, join_completion
from triptych.client.replies import ChatChunk, ChatReply, Completion
from triptych.reply import chat_reply_spec, completion_reply_spec
from triptych_derender.derenderer import Derenderer
from unit.derender.channel_toys import EOS_ID, TOOLS, answered, derenderer_of, tokens
from unit.derender.toys import MODEL, cut, stream_chunks, whole_body

CALL = '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>'
PARTS = ["<think>", "two é世", "</think>\n\n", "Hi 😀", CALL, "\n", CALL, " end", "<|im"]
TEXTS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join)
CUTS = st.lists(st.integers(1, 60), max_size=8)
PROMPT = [1, 2]


@pytest.fixture(scope="module")
def derenderer() -> Derenderer:
    return derenderer_of("qwen3")


@given(text=TEXTS, cuts=CUTS, has_logprobs=st.booleans(), has_ids=st.booleans())
def test_joined_chat_chunks_are_the_whole_reply(
    derenderer: Derenderer, text: str, cuts: list[int], has_logprobs: bool, has_ids: bool
) -> None:
    asked: dict[str, Any] = {"logprobs": has_logprobs, "top_logprobs": 1}
    asked |= {"return_token_ids": has_ids}
    asked |= {"tools": TOOLS, "stream": True, "stream_options": {"include_usage": True}}
    spec = chat_reply_spec(asked, model=MODEL)
    given = answered([*tokens(text), EOS_ID], "stop", PROMPT)
    reply = _as(ChatReply, whole_body(derenderer, spec, given))
    chunks = stream_chunks(derenderer, spec, cut(given, cuts), PROMPT)
    joined = join_chat(_as(ChatChunk, chunk) for chunk in chunks)
    assert _without_nothing(joined) == _without_nothing(reply)
    assert joined.text == reply.text == "".join(_as(ChatChunk, each).text for each in chunks)


@given(text=TEXTS, cuts=CUTS, echo=st.booleans(), stop=st.sampled_from([None, "é", "end"]))
def test_joined_completion_chunks_are_the_whole_reply(
    derenderer: Derenderer, text: str, cuts: list[int], echo: bool, stop: str | None
) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "logprobs": 1, "echo": echo, "stop": stop}
    asked |= {"return_token_ids": True}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    spec = completion_reply_spec(asked, model=MODEL)
    given = answered(tokens(text), "length", PROMPT)
    reply = _as(Completion, whole_body(derenderer, spec, given))
    chunks = stream_chunks(derenderer, spec, cut(given, cuts), PROMPT)
    joined = join_completion(_as(Completion, chunk) for chunk in chunks)
    assert _without_nothing(joined) == _without_nothing(reply)


def _as(kind: type[Any], body: Any) -> Any:
    return msgspec.json.decode(json.dumps(body), type=kind)


def _without_nothing(reply: Any) -> Any:
    """``reply`` without what says nothing: a chunk leaves out what a reply has as null or []."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = ((key, kept(each)) for key, each in value.items())
            return {key: each for key, each in pairs if each not in (None, [], "", {})}
        return [kept(each) for each in value] if isinstance(value, list) else value

    return kept(msgspec.to_builtins(reply))
