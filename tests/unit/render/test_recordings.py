"""Render against vLLM's recorded answers (``data/vllm_render.json``)."""

import json
from pathlib import Path
from typing import Any

import pytest

from triptych.wire import GenerateRequest, SamplingParams
from triptych_render.renderer import Renderer, generate_request_body

_RECORDED = json.loads((Path(__file__).parent / "data" / "vllm_render.json").read_text())
_EXCHANGES: dict[str, Any] = _RECORDED["exchanges"]
_RENDERED = sorted(set(_EXCHANGES) - {"00_tokenize"})
#: Parameters that vLLM's server keeps for itself or that derender handles here.
_NOT_OURS = {
    "output_kind",
    "skip_clone",
    "skip_reading_prefix_cache",
    "stop",
    "bad_words",
    "skip_special_tokens",
    "include_stop_str_in_output",
}

pytestmark = pytest.mark.model


def _render(smol: Renderer, exchange: dict[str, Any]) -> list[GenerateRequest]:
    body = json.dumps(exchange["request"]).encode()
    if "chat" in exchange["path"]:
        return smol.render_chat(body).requests
    return smol.render_completion(body).requests


def _recorded(exchange: dict[str, Any]) -> list[dict[str, Any]]:
    response = exchange["response"]
    return response if isinstance(response, list) else [response]


@pytest.mark.parametrize("name", _RENDERED)
def test_prompt_ids_equal_vllm(smol: Renderer, name: str) -> None:
    made = _render(smol, _EXCHANGES[name])
    assert [each.token_ids for each in made] == [
        each["token_ids"] for each in _recorded(_EXCHANGES[name])
    ]


@pytest.mark.parametrize("name", _RENDERED)
def test_sampling_parameters_equal_vllm(smol: Renderer, name: str) -> None:
    defaults = json.loads(
        generate_request_body(
            GenerateRequest(token_ids=[1], sampling_params=SamplingParams(max_tokens=16))
        )
    )["sampling_params"]
    made = _render(smol, _EXCHANGES[name])
    for ours, theirs in zip(made, _recorded(_EXCHANGES[name]), strict=True):
        got = json.loads(generate_request_body(ours))["sampling_params"]
        wanted = {k: v for k, v in theirs["sampling_params"].items() if k not in _NOT_OURS}
        if name == "11_render_completion_echo_max0":
            # vLLM generates a token and throws it away; here nothing is generated.
            wanted["max_tokens"] = 0
        got.pop("bad_words_token_ids", None)
        if structured := wanted.get("structured_outputs"):
            wanted["structured_outputs"] = {k: v for k, v in structured.items() if v}
        assert got == {**defaults, **wanted}


@pytest.mark.parametrize("name", _RENDERED)
def test_request_fields_equal_vllm(smol: Renderer, name: str) -> None:
    made = _render(smol, _EXCHANGES[name])
    for ours, theirs in zip(made, _recorded(_EXCHANGES[name]), strict=True):
        got = json.loads(generate_request_body(ours))
        for field in ("stream", "stream_options", "cache_salt", "priority"):
            assert got[field] == theirs[field], field
        assert got["return_token_ids"] == _EXCHANGES[name]["request"].get("return_token_ids")
        prefix, _, rest = theirs["request_id"].partition("-")
        assert got["request_id"].startswith(f"{prefix}-")
        assert len(got["request_id"].partition("-")[2]) == len(rest)


def test_tokenize_equals_vllm(smol: Renderer) -> None:
    exchange = _EXCHANGES["00_tokenize"]
    answer = json.loads(smol.tokenize(json.dumps(exchange["request"]).encode()))
    assert answer == exchange["response"]


def test_bad_words_become_ids_with_and_without_a_space(smol: Renderer) -> None:
    (made,) = _render(smol, _EXCHANGES["10_render_chat_maxct"])
    ids = [
        json.loads(smol.tokenize(json.dumps({"prompt": text}).encode()))["tokens"]
        for text in ("bad", " bad")
    ]
    assert made.sampling_params.bad_words_token_ids == ids
