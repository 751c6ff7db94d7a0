"""Bytes of tokens to text, token by token, and what each token shows.

The state is the bytes held since the last point where all characters were complete. While a
character is incomplete a token shows "" and its text is held; the token that completes it shows all
of it. Bytes that can never complete a character show U+FFFD at once.
"""

import re

from triptych_derender.token_table import TokenTable

#: Held text is bounded: a run of tokens that all end inside a character is shown up to its last
#: complete character once it is longer than this.
MAX_HELD_BYTES = 128

_SURROGATE = re.compile("[\ud800-\udfff]")
# First continuation byte allowed after a lead byte, where it is not 80..BF (Unicode, table 3-7).
_SECOND_BYTE = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def push_bytes(held: bytes, raw: bytes) -> tuple[str, bytes]:
    """The text that a token with ``raw`` bytes shows after ``held``, and the bytes held then."""
    data = held + raw
    num_pending = incomplete_tail_len(data)
    if not num_pending:
        return data.decode(errors="replace"), b""
    if len(data) <= MAX_HELD_BYTES:
        return "", data
    return data[:-num_pending].decode(errors="replace"), data[-num_pending:]


def flush_bytes(held: bytes) -> str:
    """What an output that ends here still shows: pending bytes become one U+FFFD."""
    return held.decode(errors="replace")


def characters(text: str) -> str:
    """``text`` with U+FFFD for what is no character: lone surrogates, which no encoder takes.

    A byte that is no part of a character is such a surrogate where bytes are decoded reversibly.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def incomplete_tail_len(data: bytes) -> int:
    """How many bytes (0 to 3) at the end of ``data`` may still become a character."""
    for length in range(1, min(3, len(data)) + 1):
        lead = data[-length]
        if lead < 0x80:
            return 0
        if lead >= 0xC0:
            return length if _is_character_start(data[-length:]) else 0
    return 0


def shown_text(table: TokenTable, held: bytes, token_id: int, *, skip_special: bool) -> str:
    """The ``token`` string of a sampled token or of an alternative after ``held`` bytes.

    A special token that the text skips shows its own literal, whatever is pending.
    """
    if held and not (skip_special and token_id in table.special_ids):
        return push_bytes(held, table.token_bytes(token_id))[0]
    text = table.token_text(token_id)
    return push_bytes(b"", table.token_bytes(token_id))[0] if text is None else text


def _is_character_start(data: bytes) -> bool:
    """Whether a lead byte and continuation bytes are the start of a longer valid character."""
    lead = data[0]
    needed = 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4
    if lead < 0xC2 or lead > 0xF4 or len(data) >= needed:
        return False
    low, high = _SECOND_BYTE.get(lead, (0x80, 0xBF))
    return len(data) == 1 or low <= data[1] <= high
