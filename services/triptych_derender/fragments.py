"""JSON fragments of tokens: templates with a place for the logprob, made once per token id.

The strings depend on the bytes that are pending before the token, nearly always none: that case is
kept for the life of the process, at most one entry per vocabulary id. Otherwise they are made anew.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from triptych_derender.text_stream import shown_text
from triptych_derender.token_table import TokenTable

_PRINTABLE_ASCII = frozenset(range(0x20, 0x7F)) - {0x5C}


class CompletionFragment(NamedTuple):
    """A token string as JSON, and a ``top_logprobs`` item as a template for its value."""

    token: bytes
    item: bytes


class TokenNames:
    """What tokens are called after certain held bytes."""

    def __init__(
        self,
        table: TokenTable,
        *,
        held: bytes = b"",
        skip_special: bool = True,
        as_token_ids: bool = False,
    ) -> None:
        self.table = table
        self._held = held
        self._skip_special = skip_special
        self._as_token_ids = as_token_ids

    def token(self, token_id: int) -> str:
        """The ``token`` string."""
        if self._as_token_ids:
            return id_name(token_id)
        return shown_text(self.table, self._held, token_id, skip_special=self._skip_special)

    def key(self, token_id: int) -> str:
        """The key in a completions ``top_logprobs`` dict, before collisions are settled."""
        token = self.token(token_id)
        if self._as_token_ids or (token and self.table.token_text(token_id) is not None):
            return token
        return bytes_name(self.table.token_bytes(token_id))


class ChatTemplates(dict[int, bytes]):
    """Chat's candidate objects by token id, made on first use; ``%b`` stands for the value."""

    def __init__(self, names: TokenNames) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, token_id: int) -> bytes:
        names = self._names
        template = candidate_template(
            names.token(token_id), names.table.token_bytes(token_id), token_id
        )
        self[token_id] = template
        return template


class CompletionFragments(dict[int, CompletionFragment]):
    """Completions fragments by token id, made on first use."""

    def __init__(self, names: TokenNames) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, token_id: int) -> CompletionFragment:
        fragment = CompletionFragment(
            token=msgspec.json.encode(self._names.token(token_id)),
            item=_item(self._names.key(token_id)),
        )
        self[token_id] = fragment
        return fragment

    def items_template(self, token_ids: Sequence[int]) -> bytes:
        """The items of one position, no key twice: the earlier candidate keeps the plain one."""
        items = [self[token_id].item for token_id in token_ids]
        if len(set(items)) < len(items):
            self._settle(items, token_ids)
        return b",".join(items)

    def _settle(self, items: list[bytes], token_ids: Sequence[int]) -> None:
        taken: set[bytes] = set()
        for position, token_id in enumerate(token_ids):
            if items[position] in taken:
                items[position] = _item(bytes_name(self._names.table.token_bytes(token_id)))
            if items[position] in taken:
                items[position] = _item(id_name(token_id))
            taken.add(items[position])


def candidate_template(token: str, raw: bytes, token_id: int | None) -> bytes:
    """Chat's object of one candidate; ``%b`` stands for the value."""
    shown_id = b"null" if token_id is None else b"%d" % token_id
    return b'{"token":%b,"logprob":%%b,"bytes":%b,"token_id":%b}' % (
        _literal(token),
        msgspec.json.encode(list(raw)),
        shown_id,
    )


def id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def bytes_name(raw: bytes) -> str:
    r"""OpenAI's spelling of bytes, ``bytes:\xe2\x80``: printable ASCII but the backslash as is."""
    spelled = (chr(byte) if byte in _PRINTABLE_ASCII else f"\\x{byte:02x}" for byte in raw)
    return "bytes:" + "".join(spelled)


def _item(key: str) -> bytes:
    return b"%b:%%b" % _literal(key)


def _literal(text: str) -> bytes:
    """``text`` as JSON inside a template."""
    return msgspec.json.encode(text).replace(b"%", b"%%")
