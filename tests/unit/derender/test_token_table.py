import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from triptych.errors import SetupError
from triptych_derender.derenderer import Derenderer
from triptych_derender.token_table import load_token_table, parse_token_table
from unit.derender.toys import TABLES, byte_alphabet

WORDS = ["▁Hello", "▁wor", "ld", "▁", "##ing", "re", "n't", ".", "<0x41>", "<0xE2>", "▁▁x"]
DECODERS: dict[str, Any] = {
    "none": None,
    "metaspace": decoders.Metaspace(),
    "metaspace_never": decoders.Metaspace(prepend_scheme="never"),
    "wordpiece": decoders.WordPiece(),
    "wordpiece_plain": decoders.WordPiece(prefix="##", cleanup=False),
    "replace": decoders.Replace("▁", " "),
    "byte_fallback": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    ),
}


def tokenizer_with(decoder: Any) -> Tokenizer:
    vocab = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="."))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return tokenizer


def test_table_has_the_true_bytes_of_eight_tokenizers(golden: Any) -> None:
    table = parse_token_table(json.dumps(golden["tokenizer_json"]).encode())
    ours = {token_id: table.token_bytes(int(token_id)) for token_id in golden["raw_bytes"]}
    theirs = {
        token_id: bytes.fromhex(raw) if raw is not None else b""
        for token_id, raw in golden["raw_bytes"].items()
    }
    assert ours == theirs


@pytest.mark.model
def test_table_of_smollm2_has_the_recorded_digest(smollm2_dir: Path) -> None:
    table = load_token_table(smollm2_dir)
    digest = hashlib.sha256()
    for raw in table.bytes_of:
        digest.update(len(raw).to_bytes(4, "little") + raw)
    assert table.num_tokens == 49152
    assert digest.hexdigest() == "118e2e0c2f2471731e233f51f164670fc351b10c1d66f47e871e73bd526938a4"


@pytest.mark.parametrize("name", DECODERS)
def test_table_agrees_with_the_tokenizers_library_inside_a_text(name: str) -> None:
    tokenizer = tokenizer_with(DECODERS[name])
    table = parse_token_table(tokenizer.to_str().encode())
    start = tokenizer.decode([1])
    for token_id in range(tokenizer.get_vocab_size()):
        if table.text_of[token_id] is None:
            continue  # part of a character: the library shows U+FFFD
        decoded = tokenizer.decode([1, token_id], skip_special_tokens=False)
        assert start + (table.text_of[token_id] or "") == decoded, WORDS[token_id : token_id + 1]


def test_byte_level_agrees_with_the_tokenizers_library_on_all_256_letters() -> None:
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(byte_alphabet())}, []))
    tokenizer.decoder = decoders.ByteLevel()
    table = parse_token_table(tokenizer.to_str().encode())
    assert table.bytes_of == [bytes([byte]) for byte in range(256)]


def test_byte_level_piece_with_a_foreign_letter_is_its_own_utf8() -> None:
    tokenizer = {
        "model": {"type": "BPE", "vocab": {"Ġa b": 0, "Ġ世": 1, "é": 2}},
        "decoder": {"type": "ByteLevel"},
    }
    table = parse_token_table(json.dumps(tokenizer).encode())
    assert table.bytes_of == ["Ġa b".encode(), "Ġ世".encode(), b"\xe9"]


def test_replace_with_a_regular_expression_and_unigram_pieces() -> None:
    tokenizer = {
        "model": {"type": "Unigram", "vocab": [["▁▁x", 0.0], ["<0x0a>", 0.0], ["<0xZZ>", 0.0]]},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": "\\1 "},
                {"type": "ByteFallback"},
            ],
        },
    }
    table = parse_token_table(json.dumps(tokenizer).encode())
    assert table.bytes_of == [b"\\1 x", b"\n", b"<0xZZ>"]


def test_added_token_replaces_the_vocabulary_piece_and_holes_have_no_bytes() -> None:
    tokenizer = {
        "model": {"type": "BPE", "vocab": {"a": 0, "old": 1}},
        "added_tokens": [
            {"id": 1, "content": "new", "special": False},
            {"id": 3, "content": "<s>", "special": True},
        ],
        "decoder": {"type": "ByteLevel"},
    }
    table = parse_token_table(json.dumps(tokenizer).encode())
    assert table.bytes_of == [b"a", b"new", b"", b"<s>"]
    assert table.special_ids == {3}
    assert (table.token_bytes(4), table.token_text(2**31 - 1)) == (b"", "")


def test_toy_tables_decode_word_starts_as_spaces() -> None:
    for table in TABLES.values():
        assert " the" in table.text_of


def test_derenderer_starts_from_a_directory_with_only_tokenizer_json(tmp_path: Path) -> None:
    source = Path(__file__).parent / "data" / "recorded_tokenizer.json"
    shutil.copy(source, tmp_path / "tokenizer.json")
    derenderer = Derenderer.from_directory(tmp_path, model="smol")
    assert derenderer.table.token_bytes(7042) == b" Paris"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert derenderer.table.fingerprint == digest[:16]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"not json", "is not a tokenizer.json"),
        (b"[]", "is not a tokenizer.json"),
        (b"{}", "is not a tokenizer.json"),
        (b'{"model": {"vocab": {}}, "decoder": {"type": "CTC"}}', "'CTC' is not supported"),
    ],
)
def test_bad_tokenizer_file_is_a_setup_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(SetupError, match=message):
        load_token_table(tmp_path)
