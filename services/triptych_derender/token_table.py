"""The token table: tokenizer.json read once, id to exact bytes. No tokenizer library needed."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from triptych.errors import SetupError
from triptych_derender.decoders import StartStrip, piece_decoder, start_strip

_FINGERPRINT_LEN = 16


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Bytes of every token id.

    ``text_of[id]`` is the token's text where its bytes are valid UTF-8 on their own, else None.
    ``fingerprint`` is the start of the file's sha256 in hex.
    """

    bytes_of: list[bytes]
    text_of: list[str | None]
    special_ids: frozenset[int]
    fingerprint: str
    start_strip: StartStrip

    @property
    def num_tokens(self) -> int:
        return len(self.bytes_of)

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes; an unknown id has none."""
        return self.bytes_of[token_id] if token_id < len(self.bytes_of) else b""

    def token_text(self, token_id: int) -> str | None:
        """The token's text if its bytes are valid UTF-8 on their own; "" for an unknown id."""
        return self.text_of[token_id] if token_id < len(self.text_of) else ""


def load_token_table(directory: Path) -> TokenTable:
    """Read ``directory/tokenizer.json``; nothing else is needed.

    Raises:
        SetupError: the file is missing or is not a tokenizer that can be decoded here.
    """
    path = directory / "tokenizer.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from error
    try:
        return parse_token_table(content)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SetupError(f"{path} is not a tokenizer.json: {error!r}") from error


def parse_token_table(content: bytes) -> TokenTable:
    """The table of a tokenizer.json given as bytes."""
    tokenizer = orjson.loads(content)
    decode = piece_decoder(tokenizer.get("decoder"))
    pieces = dict(_pieces(tokenizer))
    bytes_of = [b""] * (max(pieces, default=-1) + 1)
    for token_id, piece in pieces.items():
        bytes_of[token_id] = decode(piece)
    return TokenTable(
        bytes_of=bytes_of,
        text_of=[_own_text(raw) for raw in bytes_of],
        special_ids=frozenset(
            token["id"] for token in tokenizer.get("added_tokens") or () if token.get("special")
        ),
        fingerprint=hashlib.sha256(content).hexdigest()[:_FINGERPRINT_LEN],
        start_strip=start_strip(tokenizer.get("decoder")),
    )


def _pieces(tokenizer: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Id and piece of the model's vocabulary, then of the added tokens, which replace them."""
    vocab = tokenizer["model"]["vocab"]
    if isinstance(vocab, dict):
        yield from ((token_id, piece) for piece, token_id in vocab.items())
    else:  # Unigram: a list of [piece, score] by id
        yield from ((token_id, entry[0]) for token_id, entry in enumerate(vocab))
    for token in tokenizer.get("added_tokens") or ():
        yield token["id"], token["content"]


def _own_text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
