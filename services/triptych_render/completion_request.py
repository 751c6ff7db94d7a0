"""Models of completions, tokenize and detokenize requests."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from triptych_render.body import StrictBody
from triptych_render.chat_request import ChatPrompt
from triptych_render.shared_fields import Int32, SharedFields


def _prompt_kind(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, list):
        return "text"
    if isinstance(first, str):
        return "texts"
    return "id_lists" if isinstance(first, list) else "ids"


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Tag("texts")]
    | Annotated[list[int], Tag("ids")]
    | Annotated[list[list[int]], Tag("id_lists")],
    Discriminator(_prompt_kind),
]


class CompletionRequest(SharedFields):
    """``POST /v1/completions``. ``logprobs`` is a count, or true for ``top_logprobs`` many."""

    prompt: Prompt
    echo: bool = False
    logprobs: Int32 | bool | None = None  # in this order: an error is the first member's
    best_of: Int32 | None = None
    add_special_tokens: bool = True


class TokenizePrompt(StrictBody):
    """``POST /tokenize`` with a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChat(ChatPrompt):
    """``POST /tokenize`` with messages."""

    return_token_strs: bool = False


class DetokenizeRequest(StrictBody):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]
