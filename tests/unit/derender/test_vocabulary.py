"""What derender tells generate of the token ids; the tokenizer itself is the reference."""

from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from triptych.structured import digest_of
from triptych.wire import Vocabulary
from triptych_derender.derenderer import Derenderer
from triptych_render.encoder import Encoder

TEXT = 'Zwölf {"tea": "茶 🙂"}\n\tdone'


@pytest.mark.model
def test_vocabulary_spells_what_the_tokenizer_encodes(smollm2_dir: Path) -> None:
    vocabulary = Derenderer.from_directory(smollm2_dir, model="m").vocabulary()
    path = smollm2_dir / "tokenizer.json"
    ids = Tokenizer.from_file(str(path)).encode(TEXT, add_special_tokens=False).ids
    assert b"".join(vocabulary.tokens[each] for each in ids) == TEXT.encode()
    assert vocabulary.fingerprint == Encoder.from_file(path).fingerprint
    assert vocabulary.sha256 == digest_of(vocabulary.tokens)
    assert msgspec.json.decode(msgspec.json.encode(vocabulary), type=Vocabulary) == vocabulary


@pytest.mark.model
def test_special_tokens_spell_nothing(smollm2_dir: Path) -> None:
    vocabulary = Derenderer.from_directory(smollm2_dir, model="m").vocabulary()
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert {i for i, raw in enumerate(vocabulary.tokens) if not raw} == special
