"""The rules of docs/channels.md, one by one."""

import json
from typing import Any

import msgspec
import pytest

from triptych.errors import InvalidRequestError
from triptych.reply import completion_reply_spec
from unit.derender.channel_toys import (
    EOS_ID,
    TABLE,
    TOOLS,
    Reply,
    answered,
    derenderer_of,
    spec_of,
    streamed,
    tokens,
    whole,
)
from unit.derender.toys import MODEL

QWEN = derenderer_of("qwen3")
CALL = '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>'


def reply_to(output: str | list[int], finish: str = "length", **fields: Any) -> Reply:
    """The whole reply, after the streamed one was found to be the same."""
    ids = output if isinstance(output, list) else tokens(output)
    given = answered([*ids, EOS_ID] if finish == "stop" else ids, finish)
    reply = whole(QWEN, spec_of(**fields), given)
    by_token = streamed(QWEN, spec_of(**fields), given, range(len(ids) + 1))
    by_token.logprobs = {name: by_token.logprobs.get(name, []) for name in reply.logprobs}
    assert by_token == reply
    return reply


def token_id(raw: str) -> int:
    return TABLE.bytes_of.index(raw.encode())


def test_a_token_that_spans_channels_is_split_by_bytes() -> None:
    straddling = token_id("</think>\n\nHi")
    reply = reply_to([*tokens("<think>no"), straddling, *tokens("!")])
    assert (reply.reasoning, reply.content) == ("no", "Hi!")
    (first, _) = reply.logprobs["content"]
    (tag,) = [entry for entry in reply.logprobs["markup"] if entry["token_id"] == straddling]
    assert (first["token"], bytes(first["bytes"]), first["token_id"]) == ("Hi", b"Hi", straddling)
    assert bytes(tag["bytes"]) == b"</think>\n\n"
    assert first["logprob"] == tag["logprob"]
    (alternative,) = first["top_logprobs"]
    assert alternative["token"] == "</think>\n\nHi"
    assert reply.token_ids.count(straddling) == 1


def test_a_hidden_token_that_spans_channels_shows_only_its_visible_bytes() -> None:
    straddling = token_id("</think>\n\nHi")
    reply = reply_to([*tokens("<think>no"), straddling], include_reasoning=False)
    (entry,) = reply.logprobs["content"]
    assert (entry["token"], entry["token_id"]) == ("Hi", None)
    assert [each["token"] for each in entry["top_logprobs"]] == ["Hi"]
    assert reply.token_ids == []


def test_a_character_cut_by_a_tag_shows_what_each_channel_has_of_it() -> None:
    ids = [*tokens("<think>"), *b"\xe4\xb8", token_id("</think>"), *b"\x96"]
    reply = reply_to(ids)
    assert (reply.reasoning, reply.content) == ("\ufffd", "\ufffd")
    assert (reply.raw("reasoning_content"), reply.raw("content")) == (b"\xe4\xb8", b"\x96")


@pytest.mark.parametrize(
    ("output", "reasoning", "content"),
    [
        ("<think>all of it is thought", "all of it is thought", ""),
        ("<think>cut inside the tag</thi", "cut inside the tag</thi", ""),
        ("cut <thi", "", "cut <thi"),
        ("<think>\n\n</think>", "", ""),
        ("no tag</think> at all", "", "no tag</think> at all"),
        ("<think>a</think>b<think>c</think>d", "ac", "bd"),
        ("<think>a <tool_call> b</think>c", "a <tool_call> b", "c"),
        ("", "", ""),
    ],
)
def test_unclosed_and_odd_tags(output: str, reasoning: str, content: str) -> None:
    reply = reply_to(output)
    assert (reply.reasoning, reply.content) == (reasoning, content)
    assert reply.finish == [("length", None)]


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>not JSON</tool_call>",
        '<tool_call>{"name": "add"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": </tool_call>',
        '<tool_call>{"name": "add", "arguments": {oops}}</tool_call>',
        "<tool_call>{'name': 'add', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "n"}</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>",
        '<tool_call>{"na',
    ],
)
def test_a_broken_call_comes_back_as_content(broken: str) -> None:
    reply = reply_to(f"Look: {broken}", "stop")
    assert reply.content == f"Look: {broken}"
    assert reply.calls == []
    assert reply.finish == [("stop", None)]


def test_a_call_that_breaks_after_its_arguments_began_ends_there() -> None:
    """What was streamed cannot be taken back; what follows is content."""
    reply = reply_to('<tool_call>{"name": "add", "arguments": {"n": 1, oops}}</tool_call>', "stop")
    assert [(call["name"], call["arguments"]) for call in reply.calls] == [("add", '{"n": 1, ')]
    assert reply.content == "oops}}"
    assert reply.finish == [("tool_calls", None)]


def test_a_call_that_the_length_cuts_keeps_what_was_written() -> None:
    reply = reply_to('<tool_call>{"name": "add", "arguments": {"n": 1, "t": "ab')
    assert [(call["name"], call["arguments"]) for call in reply.calls] == [
        ("add", '{"n": 1, "t": "ab')
    ]
    assert reply.finish == [("length", None)]


@pytest.mark.parametrize(
    ("finish", "arguments", "content"),
    [("stop", ["{}"], ""), ("length", [], "[TOOL_CALLS]f[ARGS]")],
)
def test_a_call_that_the_length_cuts_before_its_arguments_has_none(
    finish: str, arguments: list[str], content: str
) -> None:
    """A call without arguments is one only if the model ended it."""
    derenderer, output = derenderer_of("mistral-args"), tokens("[TOOL_CALLS]f[ARGS]")
    given = answered([*output, EOS_ID] if finish == "stop" else output, finish)
    for reply in (
        whole(derenderer, spec_of(), given),
        streamed(derenderer, spec_of(), given, range(len(output))),
    ):
        assert [call["arguments"] for call in reply.calls] == arguments
        assert reply.content == content


def test_one_broken_call_among_others_is_content() -> None:
    reply = reply_to(f"{CALL}\n<tool_call>oops</tool_call>\n{CALL}", "stop")
    assert [name for name, _ in reply.named_calls()] == ["add", "add"]
    assert reply.content == "<tool_call>oops</tool_call>"
    assert len({call["id"] for call in reply.calls}) == 2


def test_calls_need_tools_and_a_choice_that_allows_them() -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        reply = reply_to(f"<think>hm</think>{CALL}", "stop", **fields)
        assert (reply.reasoning, reply.content, reply.calls) == ("hm", CALL, [])
        assert reply.finish == [("stop", None)]


#: Turns that go on after a tool's result, as some chat templates write them: what is before the
#: call, the call, and what is after it. DeepSeek's bars are full-width.
CONTINUED_TURNS: dict[str, list[str]] = {
    "deepseek-r1": [
        text.replace("|", "\uff5c")
        for text in (
            "<|Assistant|><|tool▁calls▁begin|>",
            '<|tool▁call▁begin|>function<|tool▁sep|>add\n```json\n{"n": 1}\n```<|tool▁call▁end|>',
            "<|tool▁calls▁end|><|tool▁outputs▁begin|>3<|tool▁outputs▁end|>",
        )
    ],
    "functiongemma": [
        "<start_of_turn>model\n",
        "<start_function_call>call:add{n:1}<end_function_call>",
        "<start_function_response>response:add{value:3}<end_function_response>",
    ],
}


@pytest.mark.parametrize("family", CONTINUED_TURNS)
@pytest.mark.parametrize("allows_parallel", [True, False])
def test_calls_that_the_prompt_holds_are_none_of_the_answer(
    family: str, allows_parallel: bool
) -> None:
    before, call, after = CONTINUED_TURNS[family]
    derenderer, spec = derenderer_of(family), spec_of(parallel_tool_calls=allows_parallel)
    for output, num_calls, finish in (("It is 3.", 0, "stop"), (call, 1, "tool_calls")):
        ids = [*tokens(output), EOS_ID]
        given = answered(ids, "stop", prompt=tokens(before + call + after))
        for reply in (
            whole(derenderer, spec, given),
            streamed(derenderer, spec, given, range(len(ids))),
        ):
            assert reply.named_calls() == [("add", {"n": 1})] * num_calls
            assert reply.finish == [(finish, None)]


def test_a_second_call_that_may_not_be_shown_is_markup() -> None:
    reply = reply_to(f"{CALL}\n{CALL}", "stop", parallel_tool_calls=False)
    assert len(reply.calls) == 1
    assert reply.raw("markup").endswith(b'"arguments": {"n": 1}}\n</tool_call><|im_end|>')


def test_a_stop_string_behind_a_call_ends_an_answer_that_calls() -> None:
    reply = reply_to(f"{CALL}\nDone. More", stop="Done")
    assert (reply.content, len(reply.calls)) == ("", 1)
    assert reply.finish == [("tool_calls", "Done")]


def test_a_stop_string_of_white_space_counts_though_it_could_be_stripped() -> None:
    reply = reply_to("one\n\ntwo", stop="\n\n")
    assert (reply.content, reply.finish) == ("one", [("stop", "\n\n")])


def test_completions_are_not_split() -> None:
    spec = completion_reply_spec({"prompt": "x"}, model=MODEL)
    body = QWEN.whole(spec, [answered(tokens("<think>a</think>b"))], request_id="r", created=1)
    assert json.loads(body)["choices"][0]["text"] == "<think>a</think>b"


def test_a_spec_of_another_template_is_refused() -> None:
    spec = msgspec.structs.replace(spec_of(), response_template="hermes")
    with pytest.raises(
        InvalidRequestError, match="response template hermes, this derender has qwen3"
    ):
        QWEN.whole(spec, [answered([97])], request_id="r", created=1)


def test_nothing_changes_without_a_template() -> None:
    derenderer = derenderer_of("none")
    spec = spec_of()
    body = json.loads(
        derenderer.whole(
            spec, [answered(tokens(f"<think>a</think>{CALL}"))], request_id="r", created=1
        )
    )
    (choice,) = body["choices"]
    assert choice["message"]["content"] == f"<think>a</think>{CALL}"
    assert set(choice["logprobs"]) == {"content"}
    assert "tool_calls" not in choice["message"]


def test_the_json_endpoint_reads_tools_from_the_chat_request() -> None:
    choice = {
        "index": 0,
        "token_ids": [*tokens(f"<think>a</think>{CALL}"), EOS_ID],
        "finish_reason": "stop",
    }
    body = {
        "generate_response": {"request_id": "g", "choices": [choice]},
        "chat_request": {"tools": TOOLS},
    }
    (shown,) = json.loads(QWEN.derender_chat(json.dumps(body).encode()))["choices"]
    assert shown["message"]["reasoning_content"] == "a"
    assert shown["message"]["content"] is None
    assert shown["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"n": 1}'}
    del body["chat_request"]
    (shown,) = json.loads(QWEN.derender_chat(json.dumps(body).encode()))["choices"]
    assert shown["message"]["content"] == CALL
