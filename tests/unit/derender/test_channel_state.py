"""The stateless stream with channels: what its state holds, and what of it is refused."""

import base64
import contextlib
import json
import random
from typing import Any

import msgspec
import pytest

from triptych.errors import InvalidRequestError, SetupError
from triptych.reply import ReplySpec, completion_reply_spec
from triptych.settings import parse_settings
from triptych_derender.settings import DerenderSettings
from triptych_derender.stream_state import StateCodec
from unit.derender.channel_toys import (
    TABLE,
    answered,
    derenderer_of,
    joined,
    spec_of,
    stateless,
    tokens,
    whole,
)
from unit.derender.toys import MODEL, cut, score, stateless_chunks

QWEN = derenderer_of("qwen3")
CALL = '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>'


OUTPUT = f"<think>{'Let me think about é世. ' * 30}</think>\n\n{'An answer. ' * 40}\n{CALL}"


def test_the_state_is_small_and_does_not_grow() -> None:
    """With 20 candidates a position, and a tag, white space or a call's beginning held back."""
    ids = tokens(OUTPUT)
    spec = spec_of(top_logprobs=20)
    given = answered(ids)
    scored = score(ids, 20)
    values = random.Random(1).choices(range(-(10**9), 0), k=len(scored.logprobs))
    scored = msgspec.structs.replace(scored, logprobs=[value / 1e8 for value in values])
    choice = msgspec.structs.replace(given.choices[0], logprobs=scored)
    given = msgspec.structs.replace(given, choices=[choice])
    _, states = stateless_chunks(
        QWEN, spec, cut(given, range(len(ids))), given.prompt_token_ids or []
    )
    assert max(map(len, states)) < 4096
    assert max(map(len, states[100:400])) <= max(map(len, states[:100])) + 16


def test_the_state_does_not_grow_with_hidden_markup() -> None:
    """Tags in plenty: none of their entries may wait for ever."""
    ids = tokens("<think>a</think>b" * 200)
    reply, states = stateless(
        QWEN, spec_of(include_reasoning=False), answered(ids), range(len(ids))
    )
    assert reply.content == "b" * 200
    assert max(map(len, states)) < 512


def test_a_signed_state_is_refused_when_it_is_forged() -> None:
    signing = derenderer_of("qwen3", state_key=b"a key of a deployment")
    replica = derenderer_of("qwen3", state_key=b"a key of a deployment")
    given = answered(tokens(OUTPUT))
    reply, states = stateless(signing, spec_of(), given, range(0, 400, 7))
    assert reply.content == whole(signing, spec_of(), given).content
    assert feed(replica, states[3])  # any replica with the key goes on
    for other in (QWEN, derenderer_of("qwen3", state_key=b"another deployment's")):
        with pytest.raises(InvalidRequestError) as caught:
            feed(other, states[3])
        assert caught.value.param == "stream_state"
    content = bytearray(base64.urlsafe_b64decode(states[3].removeprefix("t2.")))
    content[-1] ^= 1
    with pytest.raises(InvalidRequestError, match="stream_state"):
        feed(signing, "t2." + base64.urlsafe_b64encode(content).decode())


def test_a_state_of_another_template_is_refused() -> None:
    _, states = stateless(QWEN, spec_of(), answered(tokens("<think>a")), [])
    for other in (derenderer_of("hermes"), derenderer_of("none")):
        with pytest.raises(InvalidRequestError, match="stream_state"):
            feed(other, states[0])


def test_a_key_that_is_too_short_is_refused_without_being_shown() -> None:
    with pytest.raises(SetupError, match="--state-key") as caught:
        parse_settings(DerenderSettings, ["--state-key", "tooshort"])
    assert "tooshort" not in str(caught.value)


#: Fields of a SplitState in their order, as one who read the source may set them.
SPLIT: dict[str, Any] = {
    "region": [None, False, ""],
    "lead": b"",
    "waiting": [b"", []],
    "segments": [],
    "texts": [],
    "call": None,
    "num_calls": 0,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"region": ["nowhere", True, ""]},
        {"waiting": [b"\1", []]},
        {"waiting": [b"\xff" * 4, []]},
        {"waiting": [b"\1\0\0\0" * 2, [b"\1\0\0\0" * 2]]},
        {"segments": [["space", 4]]},
        {"segments": [["space", -4]]},
        {"segments": [["other", 0]]},
        {"texts": ["other"]},
        {"num_calls": -1},
        {"region": ["tool_calls", True, ""], "call": [["value", False, "", "", None, "", False]]},
        {
            "region": ["tool_calls", True, ""],
            "call": [["string", False, "", "x", None, "", False, False, ["s", "", "", False]]],
        },
    ],
)
def test_a_forged_split_is_refused_or_garbles_its_own_reply(fields: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequestError):  # nothing else may be raised
        assert feed(QWEN, forged(SPLIT | fields))


def test_a_forged_split_is_refused_where_nothing_is_split() -> None:
    with pytest.raises(InvalidRequestError, match="parsed otherwise"):
        feed(QWEN, forged(SPLIT), completion_reply_spec({}, model=MODEL))


def forged(split: dict[str, Any]) -> str:
    """A state of one choice without text."""
    packed = msgspec.msgpack.encode([{0: [{}, 1, False, False, list(split.values())]}])
    codec = StateCodec(None, f"{TABLE.fingerprint} qwen3")
    content = codec._mark(b"\0" + packed) + b"\0" + packed
    return "t2." + base64.urlsafe_b64encode(content).decode()


def feed(derenderer: Any, state: str, spec: ReplySpec | None = None) -> bytes:
    (delta,) = cut(answered(tokens('": 1')), [])
    chunk, _ = derenderer.feed_stateless(
        spec or spec_of(),
        delta,
        state,
        request_id="r",
        created=1,
        prompt_tokens=1,
        prompt_token_ids=None,
    )
    return bytes(chunk)


def test_the_prompt_is_needed_with_the_first_chunk_alone() -> None:
    prompt = tokens("<|im_start|>assistant\n<think>\n", is_long=False)
    deltas = cut(answered(tokens("hm</think>Hi", is_long=False)), range(20))
    chunks, state = [], None
    for position, each in enumerate(deltas):
        chunk, state = QWEN.feed_stateless(
            spec_of(),
            each,
            state,
            request_id="r",
            created=1,
            prompt_tokens=len(prompt),
            prompt_token_ids=None if position else prompt,
        )
        chunks.append(json.loads(chunk))
    reply = joined(chunks)
    assert (reply.reasoning, reply.content) == ("hm", "Hi")
