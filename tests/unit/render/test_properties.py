"""Whatever JSON comes, the answer is a request that generate accepts or an error of the tree."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triptych.errors import TriptychError
from triptych.sampling import Limits, check_request
from triptych_render.chat_request import ChatRequest
from triptych_render.completion_request import CompletionRequest
from triptych_render.renderer import Renderer, generate_request_body
from triptych_render.unsupported import CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED

_LIMITS = Limits(vocab_size=261, max_model_len=512)
_ODD = [10**30, -(10**30), 2**63, 1e308, -0.0, float("nan"), "\ud800", "\udc00x", "\x00", "<s>"]
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 600)
    | st.floats(-3, 3)
    | st.text(max_size=8)
    | st.sampled_from(_ODD)
)
_KEYS = st.text(max_size=5) | st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "arguments", "tool_calls"]
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=8,
)
_CHAT = {"messages": [{"role": "user", "content": "hi"}]}
_CHAT_FIELDS = sorted({*ChatRequest.model_fields, *CHAT_UNSUPPORTED})
_COMPLETION_FIELDS = sorted({*CompletionRequest.model_fields, *COMPLETION_UNSUPPORTED})


def _outcome(call: Callable[[bytes], Any], fields: Any) -> Any:
    """What the call returns, or the error of our tree that it raises; any other one escapes."""
    try:
        return call(json.dumps(fields).encode())
    except TriptychError as error:
        return error


def _render_safely(render: Callable[[bytes], Any], fields: Any) -> None:
    outcome = _outcome(render, fields)
    if isinstance(outcome, TriptychError):
        assert outcome.http_status in (400, 404)
        assert "\n" not in outcome.message
        return
    for request in outcome.requests:
        check_request(request, _LIMITS)
        generate_request_body(request)


@given(fields=_JSON)
def test_any_json_is_answered(renderer: Renderer, fields: Any) -> None:
    _render_safely(renderer.render_chat, fields)
    _render_safely(renderer.render_completion, fields)
    for call in (renderer.tokenize, renderer.detokenize):
        outcome = _outcome(call, fields)
        assert isinstance(outcome, bytes) or outcome.http_status in (400, 404)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.dictionaries(st.sampled_from(_CHAT_FIELDS), _JSON, max_size=3))
def test_any_change_of_a_chat_request_is_answered(
    renderer: Renderer, changes: dict[str, Any]
) -> None:
    _render_safely(renderer.render_chat, {**_CHAT, **changes})


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.dictionaries(st.sampled_from(_COMPLETION_FIELDS), _JSON, max_size=3))
def test_any_change_of_a_completion_request_is_answered(
    renderer: Renderer, changes: dict[str, Any]
) -> None:
    _render_safely(renderer.render_completion, {"prompt": "hi", **changes})


@given(
    message=st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"])},
        optional={"content": _JSON, "tool_calls": st.lists(_JSON, max_size=2), "name": _JSON},
    )
)
def test_any_message_is_answered(renderer: Renderer, message: dict[str, Any]) -> None:
    _render_safely(renderer.render_chat, {"messages": [message]})
