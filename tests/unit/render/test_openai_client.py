"""Everything that the real ``openai`` client can send, captured on a socket, is understood."""

import inspect
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import openai
import pytest

from triptych.errors import InvalidRequestError
from triptych.wire import StructuredOutputs
from triptych_render.renderer import Renderer

_NOT_IN_THE_BODY = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
_FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}

_SHARED: dict[str, Any] = {
    "model": "toy",
    "frequency_penalty": 0.5,
    "logit_bias": {"30": -5},
    "max_tokens": 7,
    "n": 2,
    "presence_penalty": -0.5,
    "seed": 7,
    "stop": ["x", "y"],
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "temperature": 1,
    "top_p": 0.9,
    "user": "u",
}
_CHAT: dict[str, Any] = {
    **_SHARED,
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}], "name": "s"},
        {"role": "user", "content": [{"type": "text", "text": "2+2?"}], "name": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": [{"type": "text", "text": "4"}], "tool_call_id": "c"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "4", "refusal": None},
        {"role": "user", "content": "Thanks"},
    ],
    "logprobs": True,
    "max_completion_tokens": 7,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "4"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "n",
            "description": "d",
            "strict": True,
            "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    },
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": False,
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": _FUNCTION}],
    "top_logprobs": 3,
    "verbosity": "medium",
}
#: Sent one at a time, each refused by name.
_CHAT_REFUSED: dict[str, Any] = {
    "audio": {"format": "wav", "voice": "alloy"},
    "function_call": {"name": "f"},
    "functions": [_FUNCTION],
    "moderation": {"model": "omni-moderation-latest"},
    "modalities": ["text", "audio"],
    "tool_choice": "required",
    "verbosity": "low",
    "web_search_options": {},
}
_COMPLETION: dict[str, Any] = {
    **_SHARED,
    "prompt": ["Hello", "there"],
    "best_of": 2,
    "echo": True,
    "logprobs": 3,
    "suffix": "",
}
_COMPLETION_REFUSED: dict[str, Any] = {"best_of": 3, "suffix": "the end"}

Capture = Callable[[str, dict[str, Any]], bytes]


@pytest.fixture
def capture() -> Iterator[Capture]:
    """Calls the client's ``create`` of an endpoint and returns the body that it put on the wire."""
    bodies: list[bytes] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(400)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = HTTPServer(("127.0.0.1", 0), Recorder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", max_retries=0
    )

    def call(endpoint: str, parameters: dict[str, Any]) -> bytes:
        with pytest.raises(openai.BadRequestError):
            _create(client, endpoint)(**parameters)
        return bodies[-1]

    yield call
    client.close()
    server.shutdown()
    thread.join()
    server.server_close()


def _create(client: openai.OpenAI, endpoint: str) -> Callable[..., Any]:
    return client.chat.completions.create if endpoint == "chat" else client.completions.create


def _render(renderer: Renderer, endpoint: str) -> Callable[[bytes], Any]:
    return renderer.render_chat if endpoint == "chat" else renderer.render_completion


@pytest.mark.parametrize(
    ("endpoint", "sent"),
    [("chat", {**_CHAT_REFUSED, **_CHAT}), ("completions", {**_COMPLETION_REFUSED, **_COMPLETION})],
)
def test_every_parameter_of_the_client_is_in_these_tests(
    endpoint: str, sent: dict[str, Any]
) -> None:
    with openai.OpenAI(api_key="none") as client:
        accepted = set(inspect.signature(_create(client, endpoint)).parameters)
    assert accepted - _NOT_IN_THE_BODY - set(sent) == set()


def test_chat_with_every_served_parameter_is_rendered(renderer: Renderer, capture: Capture) -> None:
    body = capture("chat", _CHAT)
    assert json.loads(body).keys() == _CHAT.keys()
    rendered = renderer.render_chat(body)
    params = rendered.requests[0].sampling_params
    assert (params.n, params.seed, params.max_tokens, params.logprobs) == (2, 7, 7, 3)
    assert params.logit_bias == {30: -5.0}
    assert (rendered.spec.stop, rendered.spec.stream) == (["x", "y"], True)
    assert rendered.spec.include_usage
    schema = _CHAT["response_format"]["json_schema"]["schema"]
    assert params.structured_outputs == StructuredOutputs(json=schema)


def test_completion_with_every_served_parameter_is_rendered(
    renderer: Renderer, capture: Capture
) -> None:
    body = capture("completions", _COMPLETION)
    assert json.loads(body).keys() == _COMPLETION.keys()
    rendered = renderer.render_completion(body)
    assert len(rendered.requests) == 2
    params = rendered.requests[1].sampling_params
    assert (params.logprobs, params.prompt_logprobs, params.max_tokens) == (3, 3, 7)
    assert rendered.spec.echo


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("Hi", [[44, 77]]),
        (["Hi", "Ho"], [[44, 77], [44, 83]]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_every_form_of_prompt_is_rendered(
    renderer: Renderer, capture: Capture, prompt: Any, wanted: list[list[int]]
) -> None:
    body = capture("completions", {"model": "toy", "prompt": prompt})
    rendered = renderer.render_completion(body)
    assert [request.token_ids for request in rendered.requests] == wanted
    assert rendered.spec.num_prompts == len(wanted)


@pytest.mark.parametrize(
    ("endpoint", "name", "value"),
    [
        *(("chat", name, value) for name, value in _CHAT_REFUSED.items()),
        *(("completions", name, value) for name, value in _COMPLETION_REFUSED.items()),
    ],
)
def test_a_parameter_that_is_not_served_is_refused_by_name(
    renderer: Renderer, capture: Capture, endpoint: str, name: str, value: Any
) -> None:
    needed = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    field = "messages" if endpoint == "chat" else "prompt"
    body = capture(endpoint, {"model": "toy", field: needed[field], name: value})
    with pytest.raises(InvalidRequestError) as error:
        _render(renderer, endpoint)(body)
    assert error.value.param == name
    assert name in error.value.message


def test_vllms_extensions_are_read(renderer: Renderer, capture: Capture) -> None:
    extensions = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "stop_token_ids": [4],
        "ignore_eos": True,
        "allowed_token_ids": [9, 10],
        "logprob_token_ids": [11],
        "logprobs_mode": "processed",
    }
    replies = {
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    body = capture(
        "chat",
        {
            "model": "toy",
            "messages": [{"role": "user", "content": "hi"}],
            "extra_body": {**extensions, **replies, "priority": 3, "cache_salt": "s"},
        },
    )
    rendered = renderer.render_chat(body)
    request = rendered.requests[0]
    assert {name: getattr(request.sampling_params, name) for name in extensions} == extensions
    assert {name: getattr(rendered.spec, name) for name in replies} == replies
    assert (request.priority, request.cache_salt, request.return_token_ids) == (3, "s", True)
