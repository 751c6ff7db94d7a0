"""Any cutting into deltas, stateful or stateless, gives the whole answer."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.errors import InvalidRequestError
from triptych.logprobs import Logprobs
from triptych.reply import ReplySpec
from triptych.wire import ChoiceDelta, FinishReason, GenerateDelta, Usage
from unit.derender.toys import (
    TABLES,
    answer,
    cut,
    delta,
    eos_id,
    join_chunks,
    score,
    stateless_chunks,
    stream_chunks,
    toy_derenderer,
    whole_body,
)

DERENDERERS = {name: toy_derenderer(table) for name, table in TABLES.items()}


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, ReplySpec, list[int], FinishReason]:
    name = draw(st.sampled_from(sorted(TABLES)))
    table = TABLES[name]
    token_id = st.integers(0, table.num_tokens + 2) | st.just(eos_id(table))
    token_ids = draw(st.lists(token_id, max_size=14))
    pieces = "".join(table.token_text(each) or "?" for each in token_ids) or "a"
    start = draw(st.integers(0, len(pieces) - 1))
    stop = pieces[start : start + draw(st.integers(1, 4))]
    spec = ReplySpec(
        endpoint=draw(st.sampled_from(["chat", "completions"])),
        model="toy",
        logprobs=draw(st.booleans()),
        top_logprobs=draw(st.sampled_from([0, 1, 2, 3, None])),
        return_token_ids=True,
        return_tokens_as_token_ids=draw(st.booleans()),
        stop=draw(st.sampled_from([[], [stop], [stop, "ab"], ["a", "<end>"]])),
        min_tokens=draw(st.integers(0, 3)),
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
    )
    return name, spec, token_ids, draw(st.sampled_from(["stop", "length"]))


@given(replies(), st.sets(st.integers(1, 14)), st.data())
@settings(max_examples=400)
def test_any_chunking_gives_the_whole_answer(
    reply: tuple[str, ReplySpec, list[int], FinishReason], cuts: set[int], data: st.DataObject
) -> None:
    name, spec, token_ids, finish_reason = reply
    derenderer, prompt = DERENDERERS[name], [3, 4]
    if spec.endpoint == "completions" and data.draw(st.booleans()):
        spec = msgspec.structs.replace(spec, echo=True)
    generated = answer(
        token_ids,
        finish_reason,
        prompt=prompt,
        logprobs=score(token_ids),
        prompt_logprobs=_prompt_scores(prompt),
    )
    (whole,) = whole_body(derenderer, spec, generated)["choices"]
    text = whole["text"] if "text" in whole else whole["message"]["content"]
    deltas = cut(generated, cuts)
    streamed = stream_chunks(derenderer, spec, deltas, prompt)
    stateless, _ = stateless_chunks(derenderer, spec, deltas, prompt)
    for chunks in (streamed, stateless):
        joined = join_chunks(chunks)[0]
        assert joined.text == text
        assert joined.token_ids == whole["token_ids"]
        assert joined.finish_reasons == [(whole["finish_reason"], whole["stop_reason"])]
        if whole["token_ids"] or spec.echo:
            assert joined.logprobs == whole["logprobs"]


@given(replies(), st.sets(st.integers(1, 14)))
@settings(max_examples=150)
def test_bytes_of_all_entries_rebuild_the_output(
    reply: tuple[str, ReplySpec, list[int], FinishReason], cuts: set[int]
) -> None:
    name, _, token_ids, _ = reply
    table = TABLES[name]
    spec = ReplySpec(
        endpoint="chat", model="toy", logprobs=True, top_logprobs=1, skip_special_tokens=False
    )
    generated = answer(token_ids, logprobs=score(token_ids))
    joined = join_chunks(stream_chunks(DERENDERERS[name], spec, cut(generated, cuts), [1]))[0]
    entries = joined.logprobs["content"] if token_ids else []
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert raw == b"".join(map(table.token_bytes, token_ids))
    assert joined.text == raw.decode(errors="replace")
    assert [entry["token_id"] for entry in entries] == token_ids
    shown = "".join(entry["token"] for entry in entries)
    assert joined.text.startswith(shown)  # the rest is the mark for a truncated end


@given(replies())
@settings(max_examples=150)
def test_text_offsets_point_at_the_tokens_texts(
    reply: tuple[str, ReplySpec, list[int], FinishReason],
) -> None:
    name, asked, token_ids, finish_reason = reply
    spec = ReplySpec(
        endpoint="completions",
        model="toy",
        logprobs=True,
        top_logprobs=1,
        skip_special_tokens=asked.skip_special_tokens,
    )
    generated = answer(token_ids, finish_reason, logprobs=score(token_ids))
    (choice,) = whole_body(DERENDERERS[name], spec, generated)["choices"]
    if choice["logprobs"] is None:
        return
    table, text = TABLES[name], choice["text"]
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert offsets == sorted(offsets)
    for position, (offset, token) in enumerate(zip(offsets, tokens, strict=True)):
        is_skipped = asked.skip_special_tokens and token_ids[position] in table.special_ids
        is_dropped = finish_reason == "stop" and position == len(tokens) - 1
        if not is_skipped and not is_dropped:
            assert text[offset : offset + len(token)] == token


def test_choices_of_several_prompts_are_numbered_and_finish_once() -> None:
    derenderer = DERENDERERS["byte_level"]
    spec = ReplySpec(endpoint="completions", model="toy", n=2, num_prompts=2, include_usage=True)
    reply = derenderer.open(spec, request_id="r", created=1, prompts=[[1, 2], [3]])
    fed = [
        reply.feed(1, msgspec.structs.replace(delta([97], index=1), cached_tokens=1)),
        reply.feed(0, msgspec.structs.replace(delta([98], "length", index=0), cached_tokens=1)),
        reply.feed(1, delta([99], "length", index=1)),
        reply.feed(1, delta([100], "length", index=0)),
        reply.feed(0, delta([101], "length", index=1)),
    ]
    joined = join_chunks(json.loads(chunk) for each in fed for chunk in each.chunks)
    assert {index: choice.text for index, choice in joined.items()} == {
        0: "b",
        1: "e",
        2: "d",
        3: "ac",
    }
    assert all(len(choice.finish_reasons) == 1 for choice in joined.values())
    assert [each.done_prompts for each in fed] == [[], [], [], [1], [0]]
    assert [each.is_done for each in fed] == [False] * 4 + [True]
    usage = json.loads(fed[-1].chunks[-1])
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 8,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_nothing_is_sent_while_all_text_is_held() -> None:
    derenderer = DERENDERERS["byte_level"]
    reply = derenderer.open(
        ReplySpec(endpoint="completions", model="toy"), request_id="r", created=1, prompts=[[1]]
    )
    first, second = "é".encode()
    assert reply.feed(0, delta([first])).chunks == []
    (chunk,) = reply.feed(0, delta([second])).chunks
    assert json.loads(chunk)["choices"][0]["text"] == "é"


def test_continuous_usage_counts_each_chunk() -> None:
    derenderer = DERENDERERS["byte_level"]
    spec = ReplySpec(endpoint="chat", model="toy", include_usage=True, continuous_usage_stats=True)
    chunks = stream_chunks(derenderer, spec, cut(answer([97, 98, 99]), [1, 2]), [1, 2])
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [1, 1, 2, 3, 3]


def test_stream_refuses_what_is_not_part_of_the_reply() -> None:
    reply = DERENDERERS["byte_level"].open(
        ReplySpec(endpoint="chat", model="toy"), request_id="r", created=1, prompts=[[1]]
    )
    with pytest.raises(InvalidRequestError, match="prompt_index is 1, the reply has 1 prompts"):
        reply.feed(1, delta([97]))
    with pytest.raises(InvalidRequestError, match=r"choices\[0\].index is 1, it must be below 1"):
        reply.feed(0, delta([97], index=1))
    with pytest.raises(InvalidRequestError, match=r"has 1 positions, .* 2 ids"):
        reply.feed(0, delta([97, 98], logprobs=score([97])))
    with pytest.raises(InvalidRequestError, match=r"position 1 scores 98, .* is 99"):
        reply.feed(0, delta([97, 99], logprobs=score([97, 98])))


def test_stream_state_does_not_grow_with_the_output() -> None:
    derenderer = DERENDERERS["byte_level"]
    spec = ReplySpec(
        endpoint="completions", model="toy", logprobs=True, top_logprobs=2, stop=["<end>"]
    )
    token_ids = list("a <b é".encode()) * 60
    deltas = cut(answer(token_ids, logprobs=score(token_ids)), range(len(token_ids)))
    _, states = stateless_chunks(derenderer, spec, deltas, [1])
    sizes = [len(state) for state in states]
    assert max(sizes[200:-1]) <= max(sizes[:14]) + 16


def test_entries_without_text_do_not_wait_for_ever() -> None:
    derenderer = DERENDERERS["byte_level"]
    spec = ReplySpec(
        endpoint="completions", model="toy", logprobs=True, top_logprobs=2, stop=["<end>"]
    )
    token_ids = [ord("<"), *[eos_id(TABLES["byte_level"])] * 500]
    deltas = cut(answer(token_ids, logprobs=score(token_ids)), range(len(token_ids)))
    chunks, states = stateless_chunks(derenderer, spec, deltas, [1])
    assert max(map(len, states)) < 8192
    assert join_chunks(chunks)[0].logprobs["tokens"] == ["<", *["</s>"] * 500]


@pytest.mark.parametrize("state", ["", "t1.abc", "t2.", "t2.####", "t2.AAAA", "t2.AAAAAAAA", "é"])
def test_garbled_stream_state_is_refused(state: str) -> None:
    with pytest.raises(InvalidRequestError, match="stream_state") as caught:
        _feed_stateless(state, delta([97]))
    assert caught.value.param == "stream_state"


@given(st.data())
@settings(max_examples=60)
def test_any_changed_character_of_a_stream_state_is_noticed(data: st.DataObject) -> None:
    _, state = _feed_stateless(None, delta([97]))
    position = data.draw(st.integers(0, len(state) - 1))
    letter = data.draw(st.sampled_from("ABCabc012-_.="))
    changed = state[:position] + letter + state[position + 1 :]
    if changed.rstrip("=") != state.rstrip("="):
        with pytest.raises(InvalidRequestError):
            _feed_stateless(changed, delta([98]))


def test_stateless_usage_chunk_does_not_bill_what_a_stop_string_discarded() -> None:
    derenderer = DERENDERERS["byte_level"]
    usage = Usage(prompt_tokens=1, completion_tokens=4, total_tokens=5)
    last = GenerateDelta(request_id="r", choices=[])
    counts = []
    for stop in ([], ["b"]):
        spec = ReplySpec(endpoint="chat", model="toy", stop=stop)
        _, states = stateless_chunks(derenderer, spec, [delta(list(b"abcd"), "length")], [1])
        chunk, _ = derenderer.feed_stateless(
            spec,
            last,
            states[-1],
            request_id="r",
            created=1,
            prompt_tokens=1,
            prompt_token_ids=None,
            usage=usage,
        )
        assert json.loads(chunk)["choices"] == []
        counts.append(json.loads(chunk)["usage"]["completion_tokens"])
    assert counts == [4, 2]


def test_stateless_chunk_holds_several_choices() -> None:
    derenderer = DERENDERERS["byte_level"]
    both = GenerateDelta(
        request_id="r",
        choices=[
            ChoiceDelta(index=1, token_ids=[97]),
            ChoiceDelta(index=0, token_ids=[98], finish_reason="length"),
        ],
    )
    spec = ReplySpec(endpoint="chat", model="toy", n=2)
    chunks, _ = stateless_chunks(derenderer, spec, [both, both], [1])
    shown = [
        [(c["index"], c["delta"]["role"], c["delta"]["content"]) for c in chunk["choices"]]
        for chunk in chunks
    ]
    assert shown == [[(0, "assistant", "b"), (1, "assistant", "a")], [(1, None, "a")]]


def _feed_stateless(state: str | None, each: GenerateDelta) -> tuple[bytes, str]:
    return DERENDERERS["byte_level"].feed_stateless(
        ReplySpec(endpoint="chat", model="toy"),
        each,
        state,
        request_id="r",
        created=1,
        prompt_tokens=1,
        prompt_token_ids=None,
    )


def _prompt_scores(prompt: list[int]) -> Logprobs:
    scored = score(prompt)
    first = scored.counts[0]
    return Logprobs(
        counts=[0, *scored.counts[1:]],
        token_ids=scored.token_ids[first:],
        logprobs=scored.logprobs[first:],
        ranks=scored.ranks[first:],
    )
