"""Text to ids and back through tokenizer.json, without transformers' tokenizer classes."""

import hashlib
import re
from pathlib import Path

from tokenizers import Tokenizer

from triptych.errors import InvalidRequestError, SetupError


class Encoder:
    """Encodes and decodes; safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, *, fingerprint: str) -> None:
        # A tokenizer.json may carry the truncation and padding of its training script.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.fingerprint = fingerprint
        vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocab.values(), default=-1)
        self.max_token_chars = max(map(len, vocab), default=1)
        self._leading_ids = self._find_leading_ids()
        added = tokenizer.get_added_tokens_decoder()
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        longest_first = sorted(map(re.escape, self._added_ids), key=len, reverse=True)
        self._added = re.compile("|".join(longest_first) or r"\b\B")

    @classmethod
    def from_file(cls, path: Path) -> "Encoder":
        """The encoder of a tokenizer.json; its fingerprint is the start of the file's sha256.

        Raises:
            SetupError: no such file, or not one that ``tokenizers`` reads.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SetupError(f"cannot read {path}: {error.strerror}") from error
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # what tokenizers raises
            raise SetupError(f"{path} is not a tokenizer: {error}") from error
        return cls(tokenizer, fingerprint=hashlib.sha256(content).hexdigest()[:16])

    @property
    def kind(self) -> str:
        """The tokenizer's algorithm: BPE, Unigram, WordPiece or WordLevel."""
        return type(self._tokenizer.model).__name__

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of ``text``.

        With ``add_special_tokens`` the tokenizer's own BOS (and EOS) are added, but no second BOS
        in front of one that the text begins with.

        Raises:
            InvalidRequestError: the text is not valid Unicode.
        """
        try:
            # The batch call, other than the single one, releases the GIL and makes no offsets.
            encoding = self._tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )[0]
        except TypeError as error:
            raise InvalidRequestError("the prompt holds a lone surrogate") from error
        ids: list[int] = encoding.ids
        leading = self._leading_ids
        if add_special_tokens and leading and ids[: 2 * len(leading)] == leading * 2:
            return ids[len(leading) :]
        return ids

    def split_at_added(self, text: str) -> list[str | int]:
        """``text`` in parts: the ids of the added tokens in it, and the text between them."""
        parts: list[str | int] = []
        position = 0
        for found in self._added.finditer(text):
            parts += [text[position : found.start()], self._added_ids[found[0]]]
            position = found.end()
        return [part for part in [*parts, text[position:]] if part != ""]

    def decode(self, ids: list[int]) -> str:
        """The text of ``ids``, special tokens included; ids without a token give none."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's own writing of a token (with ``Ġ`` or ``▁``); None if there is none."""
        piece: str | None = self._tokenizer.id_to_token(token_id)
        return piece

    def _find_leading_ids(self) -> list[int]:
        """The ids that the post-processor puts before a text: BOS, mostly, or none."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full: list[int] = self._tokenizer.encode("a", add_special_tokens=True).ids
        if not plain:
            return []
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return full[:start]
        return []
