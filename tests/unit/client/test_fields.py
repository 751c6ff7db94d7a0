"""The client's fields are those that render reads."""

from typing import Any, get_type_hints

import pytest

from triptych.client.fields import ChatFields, CompletionFields, Message, TemplateFields
from triptych_render import chat_request
from triptych_render.chat_request import ChatPrompt, ChatRequest
from triptych_render.completion_request import CompletionRequest


@pytest.mark.parametrize(
    ("fields", "model", "given_otherwise"),
    [
        (ChatFields, ChatRequest, {"messages", "stream"}),
        (CompletionFields, CompletionRequest, {"prompt", "stream"}),
        (TemplateFields, ChatPrompt, {"messages", "model"}),
    ],
)
def test_fields_are_those_of_the_request_model(
    fields: Any, model: Any, given_otherwise: set[str]
) -> None:
    assert set(get_type_hints(fields)) == set(model.model_fields) - given_otherwise


def test_message_has_the_keys_that_render_knows() -> None:
    assert set(get_type_hints(Message)) == set(get_type_hints(chat_request.Message))
