"""Request fields that would change the answer and are not served: refused by name, never ignored.

A value that asks for nothing (an empty ``suffix``) passes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from triptych.errors import InvalidRequestError


class Unsupported(NamedTuple):
    """``is_harmless`` says whether a value asks for nothing; ``served`` is what may be sent."""

    is_harmless: Callable[[Any], bool]
    served: str


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _never(value: Any) -> bool:
    del value
    return False


def _is_empty(value: Any) -> bool:
    return not value


_NOTHING = Unsupported(_never, "leave it out")

_BOTH: dict[str, Unsupported] = {
    "use_beam_search": Unsupported(_one_of(False), "only false is served here"),
    "truncate_prompt_tokens": _NOTHING,
    "prompt_embeds": Unsupported(_is_empty, "send text or token ids as prompt"),
    "logits_processors": Unsupported(_is_empty, "leave it out"),
}

CHAT_UNSUPPORTED: Mapping[str, Unsupported] = {
    **_BOTH,
    "audio": _NOTHING,
    "modalities": Unsupported(_one_of(["text"], []), 'only ["text"] is served here'),
    "functions": Unsupported(_is_empty, "it is deprecated, send tools"),
    "function_call": Unsupported(_one_of("none", "auto"), "it is deprecated, send tools"),
    "web_search_options": _NOTHING,
    "moderation": _NOTHING,
    "verbosity": Unsupported(_one_of("medium"), 'only "medium" is served here'),
    "echo": Unsupported(_one_of(False), "only false is served here"),
}

COMPLETION_UNSUPPORTED: Mapping[str, Unsupported] = {
    **_BOTH,
    "suffix": Unsupported(_is_empty, "only a completion at the end of the prompt is served here"),
}


def refuse_unsupported(fields: dict[str, Any], table: Mapping[str, Unsupported]) -> None:
    """Refuse the first field of ``fields`` that asks for something ``table`` says is not served.

    Raises:
        InvalidRequestError: such a field is there; ``param`` names it.
    """
    for name, value in fields.items():
        entry = table.get(name)
        if entry is not None and not entry.is_harmless(value):
            raise InvalidRequestError(f"{name} is not supported: {entry.served}", param=name)
