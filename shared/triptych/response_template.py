"""Which response template a model has: its tokenizer's own, one of the built-in families, or none.

Templates are data: files in ``response_templates``, or the ``response_template`` of a model's
tokenizer_config.json, both in the form that transformers' ``ResponseParser`` reads. Nothing here
imports transformers. How to add a family: docs/channels.md.
"""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from triptych.errors import SetupError

#: The parts of a chat answer. ``markup``: tags, stop tokens, white space that was stripped.
Channel = Literal["content", "reasoning_content", "tool_calls", "markup"]

#: Fields of other people's templates that hold one of our channels; all others are content.
_KNOWN_FIELDS: dict[str, Channel] = {
    "reasoning_content": "reasoning_content",
    "reasoning": "reasoning_content",
    "thinking": "reasoning_content",
    "tool_calls": "tool_calls",
}
_FOLDER = Path(__file__).parent / "response_templates"


class ReasoningSyntax(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands around reasoning that comes before a call, white space after it included."""

    open: str
    close: str


class CallSyntax(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an answer that has to be calls is written.

    ``call``: one call, where ``{name}`` and ``{arguments}`` stand for the function's name and the
    JSON object of its arguments. ``separator``: between calls; None = an answer holds one at most.
    ``begin`` and ``end``: around all of them. ``reasoning``: of a family that thinks first.
    """

    call: str
    separator: str | None = None
    begin: str = ""
    end: str = ""
    reasoning: ReasoningSyntax | None = None


class ResponseFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One family of output formats.

    ``detect``: added tokens that all models of the family have, for ``auto``; empty = never.
    ``prefix``: how its prompts begin the answer, where a caller does not give the prompt.
    ``channels``: of fields whose name is none of the usual ones.
    ``call_syntax``: None where an answer cannot be held to be calls.
    ``call_id_chars``: length of tool call ids where the chat template insists on one.
    """

    description: str
    response_template: dict[str, Any]
    detect: list[str] = []
    prefix: str = ""
    channels: dict[str, Channel] = {}
    call_syntax: CallSyntax | None = None
    call_id_chars: int | None = None
    name: str = ""

    def channel(self, field: str) -> Channel:
        return self.channels.get(field) or _KNOWN_FIELDS.get(field, "content")

    @property
    def has_calls(self) -> bool:
        fields = self.response_template.get("fields", {})
        return any(self.channel(field) == "tool_calls" for field in fields)

    @property
    def reasoning_ends(self) -> list[str]:
        """Literals that end the reasoning channel."""
        fields = self.response_template.get("fields", {})
        ends = [
            field.get("close")
            for name, field in fields.items()
            if self.channel(name) == "reasoning_content"
        ]
        return [text for end in ends for text in ([end] if isinstance(end, str) else end or [])]


def family_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def read_family(path: Path) -> ResponseFamily:
    """The family in a data file, named after the file.

    Raises:
        SetupError: it cannot be read, or is not of this form.
    """
    try:
        family = msgspec.json.decode(path.read_bytes(), type=ResponseFamily)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SetupError(f"response template {path}: {error}") from error
    if family.call_syntax is not None:
        _check_syntax(family.call_syntax, path)
    return msgspec.structs.replace(family, name=path.stem)


def _check_syntax(syntax: CallSyntax, path: Path) -> None:
    for part in ("{name}", "{arguments}"):
        if syntax.call.count(part) != 1:
            raise SetupError(f"response template {path}: call_syntax.call must hold {part} once")


def find_family(choice: str, directory: Path) -> ResponseFamily | None:
    """What ``--response-template`` means for the model in ``directory``; None = no parsing.

    Args:
        choice: ``auto``, ``none``, the name of a family, or the path of a .json file like theirs.
        directory: of the model; ``auto`` reads its tokenizer_config.json and tokenizer.json.

    Raises:
        SetupError: no such family, or a file that cannot be read.
    """
    if choice == "none":
        return None
    if choice == "auto":
        return _own_family(directory) or _detected_family(directory)
    if choice.endswith(".json"):
        return read_family(Path(choice))
    if choice not in family_names():
        known = ", ".join(family_names())
        raise SetupError(f"there is no response template {choice!r}; there are {known}, auto, none")
    return read_family(_FOLDER / f"{choice}.json")


def _own_family(directory: Path) -> ResponseFamily | None:
    """The tokenizer's own template, if it has one."""
    template = _read_object(directory / "tokenizer_config.json").get("response_template")
    if not isinstance(template, dict):
        return None
    description = "The tokenizer's own response template."
    return ResponseFamily(description=description, response_template=template, name="tokenizer")


def _detected_family(directory: Path) -> ResponseFamily | None:
    """The family whose tokens the tokenizer has; of several, the one that names most."""
    tokens = _added_tokens(directory / "tokenizer.json")
    families = [read_family(_FOLDER / f"{name}.json") for name in family_names()]
    found = [family for family in families if family.detect and tokens.issuperset(family.detect)]
    return max(found, key=lambda family: len(family.detect), default=None)


class _AddedToken(msgspec.Struct):
    content: str


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_AddedToken] | None = None


def _added_tokens(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    try:
        tokenizer = msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} is not a tokenizer.json: {error}") from error
    return {token.content for token in tokenizer.added_tokens or ()}


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        # Not msgspec: transformers writes Infinity into some configs.
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise SetupError(f"{path} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}
