"""What a tokenizer.json ``decoder`` makes of one vocabulary piece: its exact bytes.

Only what is a property of the single token is done here. What a decoder does once at the start of
a whole text (dropping a leading space) is ``start_strip``'s answer.
Source: the rules in docs/logprobs.md, checked against the tokenizers library.
"""

import re
from collections.abc import Callable
from typing import Any, Literal

from triptych.errors import SetupError

#: A piece on its way through the decoder's steps; bytes are final.
Piece = str | bytes
PieceStep = Callable[[Piece], Piece]

#: How much leading space a whole text loses: none, one space, or all the first token's.
StartStrip = Literal["nothing", "one_space", "first_token_spaces"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def piece_decoder(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """A function from a vocabulary piece to its bytes.

    Raises:
        SetupError: the decoder holds a step that is not known here.
    """
    steps = _steps(decoder)

    def decode(piece: str) -> bytes:
        value: Piece = piece
        for step in steps:
            value = step(value)
        return value.encode() if isinstance(value, str) else value

    return decode


def start_strip(decoder: dict[str, Any] | None) -> StartStrip:
    """What the decoder drops at the start of a whole text (never of an output)."""
    if decoder is None or decoder["type"] == "WordPiece":
        return "one_space"
    if decoder["type"] == "Metaspace":
        return "nothing" if _prepend_scheme(decoder) == "never" else "first_token_spaces"
    if decoder["type"] == "Sequence":
        found = [start_strip(step) for step in decoder["decoders"]]
        return next((strip for strip in found if strip != "nothing"), "nothing")
    strips = decoder["type"] == "Strip" and decoder.get("content") == " " and decoder.get("start")
    return "one_space" if strips else "nothing"


def _steps(decoder: dict[str, Any] | None) -> list[PieceStep]:
    if decoder is None:
        return [lambda value: b" " + value if isinstance(value, bytes) else " " + value]
    kind = decoder["type"]
    if kind == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    if kind in ("Fuse", "Strip"):
        return []  # they act on the whole text
    if kind == "ByteLevel":
        return [_text_step(_byte_level)]
    if kind == "ByteFallback":
        return [_text_step(_byte_fallback)]
    if kind == "Replace":
        return [_text_step(_replacer(decoder))]
    if kind == "Metaspace":
        mark = decoder.get("replacement", "▁")
        return [_text_step(lambda piece: piece.replace(mark, " "))]
    if kind == "WordPiece":
        return [_text_step(_word_piece(decoder))]
    raise SetupError(f"tokenizer.json: decoder step {kind!r} is not supported")


def _text_step(step: Callable[[str], Piece]) -> PieceStep:
    return lambda value: step(value) if isinstance(value, str) else value


def _prepend_scheme(decoder: dict[str, Any]) -> str:
    if "prepend_scheme" in decoder:
        return str(decoder["prepend_scheme"])
    return "always" if decoder.get("add_prefix_space", True) else "never"


def _replacer(decoder: dict[str, Any]) -> Callable[[str], Piece]:
    pattern, content = decoder["pattern"], decoder["content"]
    if "String" in pattern:
        return lambda piece: piece.replace(pattern["String"], content)
    compiled = re.compile(pattern["Regex"])
    return lambda piece: compiled.sub(lambda _: content, piece)


def _byte_fallback(piece: str) -> Piece:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes.fromhex(match[1]) if match else piece


def _byte_level(piece: str) -> bytes:
    """Letters of the byte alphabet to their bytes; with any other letter, the piece's UTF-8."""
    try:
        return piece.translate(_BYTE_OF_LETTER).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


def _byte_alphabet() -> dict[int, int | str]:
    """GPT-2's letters to bytes, and a letter that latin-1 lacks for all other latin-1 letters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table: dict[int, int | str] = {letter: letter for letter in printable}
    others = [byte for byte in range(256) if byte not in table]
    outside: dict[int, int | str] = dict.fromkeys(others, "\uffff")
    return table | outside | {256 + index: byte for index, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_alphabet()

# The clean-up that the WordPiece decoder does inside each token, in its order.
_CLEAN_UPS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def _word_piece(decoder: dict[str, Any]) -> Callable[[str], str]:
    prefix, cleans_up = decoder.get("prefix", "##"), decoder.get("cleanup", True)

    def decode(piece: str) -> str:
        text = piece[len(prefix) :] if piece.startswith(prefix) else " " + piece
        for old, new in _CLEAN_UPS if cleans_up else ():
            text = text.replace(old, new)
        return text

    return decode
