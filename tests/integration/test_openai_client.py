"""The stock `openai` client against the running stack, over real sockets."""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import httpx
import msgspec
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from support.stack import Stack, wait_for

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("stack")]

_T = TypeVar("_T")

MESSAGES: Any = [{"role": "user", "content": "Name three colours, with emoji."}]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.gateway}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def present(value: _T | None) -> _T:
    assert value is not None
    return value


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="smollm2", messages=MESSAGES, **fields)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": "smollm2", "prompt": PROMPT, **fields})


SETTINGS: list[dict[str, Any]] = [
    {"max_tokens": 12, "temperature": 0},
    {"max_tokens": 24, "seed": 11, "temperature": 1.3, "top_p": 0.95},
    {"max_tokens": 6, "seed": 5, "n": 3},
    {"max_tokens": 24, "temperature": 0, "stop": ["\n", "ed"]},
    {"max_tokens": 8, "seed": 1, "presence_penalty": 1.0, "frequency_penalty": -1.0},
    {"max_tokens": 6, "temperature": 0, "logit_bias": {"30": 5, "198": -100}},
]


@pytest.mark.parametrize(
    ("fields", "top_logprobs"),
    [(SETTINGS[2], None), (SETTINGS[3], 0), *((fields, 5) for fields in SETTINGS)],
)
def test_joined_chat_stream_equals_whole_answer(
    client: openai.OpenAI, fields: dict[str, Any], top_logprobs: int | None
) -> None:
    asked = dict(fields)
    if top_logprobs is not None:
        asked |= {"logprobs": True, "top_logprobs": top_logprobs}
    whole: ChatCompletion = chat(client, **asked)
    chunks: list[ChatCompletionChunk] = list(
        chat(client, **asked, stream=True, stream_options={"include_usage": True})
    )
    *parts, usage = chunks
    assert usage.choices == []
    assert usage.usage == whole.usage
    assert all(part.usage is None for part in parts)
    assert len({part.id for part in chunks}) == 1
    for choice in whole.choices:
        mine = [c for part in parts for c in part.choices if c.index == choice.index]
        assert "".join(c.delta.content or "" for c in mine) == choice.message.content
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
        assert [c.delta.role for c in mine if c.delta.role] == ["assistant"]
        entries = [e for c in mine if c.logprobs for e in c.logprobs.content or []]
        assert entries == ((choice.logprobs.content or []) if choice.logprobs else [])


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        (SETTINGS[2], None),
        (SETTINGS[3], 0),
        *((fields, 3) for fields in SETTINGS),
        ({"max_tokens": 5, "echo": True, "temperature": 0}, 3),
    ],
)
def test_joined_completion_stream_equals_whole_answer(
    client: openai.OpenAI, fields: dict[str, Any], logprobs: int | None
) -> None:
    whole: Completion = complete(client, **fields, logprobs=logprobs)
    parts: list[Completion] = list(complete(client, **fields, logprobs=logprobs, stream=True))
    for choice in whole.choices:
        mine = [c for part in parts for c in part.choices if c.index == choice.index]
        assert "".join(c.text for c in mine) == choice.text
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
        scored = [c.logprobs for c in mine if c.logprobs]
        if choice.logprobs is None:
            assert scored == []
            continue
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [value for each in scored for value in getattr(each, name) or []]
            assert joined == getattr(choice.logprobs, name)


def test_logprob_bytes_rebuild_the_message(client: openai.OpenAI) -> None:
    answer: ChatCompletion = chat(
        client,
        max_tokens=24,
        seed=3,
        temperature=1.0,
        logprobs=True,
        extra_body={"ignore_eos": True},
    )
    choice = answer.choices[0]
    assert choice.logprobs
    assert choice.logprobs.content
    raw = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content)
    visible = re.sub(rb"<\|im_(start|end)\|>", b"", raw)
    assert visible.decode("utf-8", "replace") == choice.message.content


def test_sampled_token_is_first_and_has_the_entry_value(client: openai.OpenAI) -> None:
    answer: ChatCompletion = chat(
        client, max_tokens=20, seed=2, temperature=1.5, logprobs=True, top_logprobs=2
    )
    entries = present(answer.choices[0].logprobs).content or []
    assert len(entries) == present(answer.usage).completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob == entry.logprob


def test_same_seed_gives_the_same_answer_and_n_gives_different_ones(client: openai.OpenAI) -> None:
    first: ChatCompletion = chat(client, max_tokens=6, seed=9, temperature=1.5, n=3)
    again: ChatCompletion = chat(client, max_tokens=6, seed=9, temperature=1.5, n=3)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3


def test_prompt_list_gives_choices_prompt_by_prompt(client: openai.OpenAI) -> None:
    answer: Completion = complete(
        client,
        prompt=["Hello", "The capital of France is"],
        max_tokens=2,
        n=2,
        temperature=0,
        echo=True,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith("Hello") for choice in answer.choices] == [
        True,
        True,
        False,
        False,
    ]


def test_id_prompts_equal_their_text(client: openai.OpenAI, stack: Stack) -> None:
    tokenized = httpx.post(f"{stack.gateway}/tokenize", json={"prompt": PROMPT}).json()
    by_text: Completion = complete(client, max_tokens=4, temperature=0, logprobs=2)
    by_ids: Completion = complete(
        client, prompt=tokenized["tokens"], max_tokens=4, temperature=0, logprobs=2
    )
    assert by_ids.choices == by_text.choices


def test_echo_scores_the_prompt_alone(client: openai.OpenAI) -> None:
    answer: Completion = complete(client, max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer.choices
    logprobs = present(choice.logprobs)
    assert choice.text == PROMPT
    assert present(answer.usage).completion_tokens == 0
    assert "".join(logprobs.tokens or []) == PROMPT
    assert (logprobs.token_logprobs or [0])[0] is None
    assert all(value is not None for value in (logprobs.token_logprobs or [])[1:])


def test_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    free: Completion = complete(client, max_tokens=20, temperature=0)
    word = free.choices[0].text.split()[2]
    stopped: Completion = complete(client, max_tokens=20, temperature=0, stop=word)
    (choice,) = stopped.choices
    assert choice.text == free.choices[0].text.partition(word)[0]
    assert choice.finish_reason == "stop"
    assert (choice.model_extra or {})["stop_reason"] == word
    assert present(stopped.usage).completion_tokens < 20


BAD: list[tuple[dict[str, Any], type[openai.APIStatusError], str]] = [
    ({"model": "nope"}, openai.NotFoundError, "nope"),
    ({"messages": []}, openai.BadRequestError, "messages"),
    ({"messages": "hi"}, openai.BadRequestError, "messages"),
    ({"top_logprobs": 21, "logprobs": True}, openai.BadRequestError, "20"),
    ({"top_logprobs": 2}, openai.BadRequestError, "logprobs"),
    ({"temperature": -1}, openai.BadRequestError, "temperature"),
    ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
    ({"n": 0}, openai.BadRequestError, "n is 0"),
    ({"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError, "8,19"),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("fields", "error", "named"), BAD)
def test_bad_chat_request_is_refused_in_openai_form(
    client: openai.OpenAI,
    fields: dict[str, Any],
    error: type[openai.APIStatusError],
    named: str,
    is_stream: bool,
) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 1, **fields}
    with pytest.raises(error) as caught:
        client.chat.completions.create(**asked, stream=is_stream)
    assert named in str(caught.value)
    body = caught.value.body
    assert isinstance(body, dict)
    assert body.keys() == {"message", "type", "param", "code"}


BAD_PROMPTS = ["", [], [[]], [-1], [49152], [2**31], [[1], [99999]], [30] * 9000]


@pytest.mark.parametrize("prompt", BAD_PROMPTS)
def test_bad_prompt_is_refused(client: openai.OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        complete(client, prompt=prompt, max_tokens=1)


def test_malformed_json_and_large_body(stack: Stack) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        malformed = httpx.post(stack.gateway + path, content=b'{"a":')
        assert (malformed.status_code, malformed.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
    huge = httpx.post(f"{stack.gateway}/v1/completions", content=b" " * (33 * 2**20), timeout=30)
    assert huge.status_code == 413


def test_served_model_is_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "smollm2"


def test_request_id_goes_through_every_hop(stack: Stack) -> None:
    body = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 1}
    answer = httpx.post(
        f"{stack.gateway}/v1/chat/completions",
        json=body,
        headers={"x-request-id": "trace-77"},
        timeout=60,
    )
    assert answer.headers["x-request-id"] == "trace-77"
    assert msgspec.json.decode(answer.content)["id"] == "chatcmpl-trace-77"
    wait_for(stack.log, stack.process, "trace-77")
    assert "colours" not in stack.log.read_text()


def test_reply_id_has_its_prefix_once(stack: Stack) -> None:
    """A caller that sends back the id of an earlier reply gets the same id, not a longer one."""
    body = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 1}
    headers = {"x-request-id": "chatcmpl-again"}
    path = "/v1/chat/completions"
    answer = httpx.post(stack.gateway + path, json=body, headers=headers, timeout=60)
    rendered = httpx.post(f"{stack.render}{path}/render", json=body, headers=headers, timeout=60)
    assert answer.json()["id"] == rendered.json()["request_id"] == "chatcmpl-again"


def test_bad_requests_do_not_disturb_a_running_answer(client: openai.OpenAI, stack: Stack) -> None:
    asked: dict[str, Any] = {"max_tokens": 8, "seed": 6, "logprobs": True, "top_logprobs": 2}
    undisturbed: ChatCompletion = chat(client, **asked)
    entries: list[Any] = []
    generate = f"{stack.generate}/inference/v1/generate"
    for chunk in chat(client, **asked, stream=True):
        for choice in chunk.choices:
            entries += (choice.logprobs and choice.logprobs.content) or []
        for body in ("{", '{"token_ids": [-1], "sampling_params": {}}', '{"token_ids": []}'):
            assert httpx.post(generate, content=body).status_code == 400
    assert entries == present(undisturbed.choices[0].logprobs).content
