"""Request fields that would change the answer and are not served: refused by name, never ignored.

A value that asks for nothing (an empty ``suffix``) passes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from triptych.errors import InvalidRequestError


class Unsupported(NamedTuple):
    """``harmless``: the values that ask for nothing; ``served``: what may be sent."""

    harmless: tuple[Any, ...]
    served: str

    def allows(self, value: Any) -> bool:
        return any(type(each) is type(value) and each == value for each in self.harmless)


_NOTHING = Unsupported((), "leave it out")

_BOTH: dict[str, Unsupported] = {
    "use_beam_search": Unsupported((False,), "only false is served here"),
    "truncate_prompt_tokens": _NOTHING,
    "prompt_embeds": Unsupported(("", []), "send text or token ids as prompt"),
    "logits_processors": Unsupported(([],), "leave it out"),
}

CHAT_UNSUPPORTED: Mapping[str, Unsupported] = {
    **_BOTH,
    "audio": _NOTHING,
    "modalities": Unsupported((["text"], []), 'only ["text"] is served here'),
    "functions": Unsupported(([],), "it is deprecated, send tools"),
    "function_call": Unsupported(("none", "auto"), "it is deprecated, send tools"),
    "web_search_options": _NOTHING,
    "moderation": _NOTHING,
    "verbosity": Unsupported(("medium",), 'only "medium" is served here'),
    "echo": Unsupported((False,), "only false is served here"),
}

COMPLETION_UNSUPPORTED: Mapping[str, Unsupported] = {
    **_BOTH,
    "suffix": Unsupported(("",), "only a completion at the end of the prompt is served here"),
}


def refuse_unsupported(fields: dict[str, Any], table: Mapping[str, Unsupported]) -> None:
    """Refuse the first field of ``fields`` that asks for something ``table`` says is not served.

    Raises:
        InvalidRequestError: such a field is there; ``param`` names it.
    """
    for name, value in fields.items():
        entry = table.get(name)
        if entry is not None and not entry.allows(value):
            raise InvalidRequestError(f"{name} is not supported: {entry.served}", param=name)
