"""Which characters of a JSON text are inside strings, where a tag is no tag."""

from typing import Literal

#: ``""``: outside of strings; ``"``: inside one; a backslash: after one inside. A line end: there
#: was one in a string, which JSON does not allow, so no more strings are looked for.
StringState = Literal["", '"', "\\", "\n"]
_HIDDEN = "\0"


def hide_strings(text: str, state: StringState) -> tuple[str, StringState]:
    """``text`` with other characters for those inside strings, and the state after it."""
    shown = []
    for char in text:
        is_inside = state == '"' or state == "\\"
        shown.append(_HIDDEN if is_inside else char)
        state = _after(char, state)
    return "".join(shown), state


def _after(char: str, state: StringState) -> StringState:
    if state == "\\":
        return '"'
    if state == '"':
        return {'"': "", "\\": "\\", "\n": "\n"}.get(char, '"')  # type: ignore[return-value]
    return '"' if state == "" and char == '"' else state
