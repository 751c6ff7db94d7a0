"""What sequences share: hits on cached prefixes, and blocks that become known as they fill."""

import hashlib
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from triptych_generate.blocks import BlockPool
from triptych_generate.kept_scores import MAX_KEPT_BEST, KeptScores
from triptych_generate.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Hit:
    """What a sequence need not compute.

    Attributes:
        shared: the cached blocks that begin its table.
        copied: the cached block whose copy follows them. A sequence that begins inside a block
            writes into it, so it needs its own.
        num_tokens: leading tokens whose keys and values are there. The last one never is: its
            logits are needed.
        scores: the kept prompt scores of the first blocks, as far as they suffice.
        missing: the key of the first block that is not cached.
    """

    shared: list[int] = field(default_factory=list)
    copied: int | None = None
    num_tokens: int = 0
    scores: list[KeptScores] = field(default_factory=list)
    missing: bytes | None = None


class PrefixCache:
    """Finds and publishes the blocks of sequences in one pool.

    A block's key is a SHA-256 over its parent's key and its token ids, so it names all ids from
    the start; the first parent is the request's salt. Equal keys are equal text of one salt: a
    collision would show one tenant another's text, hence a cryptographic hash.

    Keys that a sequence is about to compute are claimed: another that needs them waits for those
    blocks instead of computing them too, so ``n`` choices compute their prompt once.
    """

    def __init__(self, pool: BlockPool, *, is_on: bool) -> None:
        self._pool = pool
        self._is_on = is_on
        self._claims: dict[bytes, Sequence] = {}
        self.num_queried = 0
        self.num_hit = 0

    def name_blocks(self, sequence: Sequence) -> None:
        """Give ``sequence`` the keys of the tokens it has; needed before it waits."""
        if not self._is_on:
            return
        self._extend_keys(sequence, len(sequence.token_ids))
        tail = sequence.token_ids[len(sequence.block_keys) * self._pool.block_size :]
        sequence.tail_key = _key_of(_last_key(sequence), tail) if tail else None

    def find(self, sequence: Sequence) -> Hit:
        """The longest cached prefix that helps ``sequence``. Changes nothing."""
        if not self._is_on:
            return Hit()
        size, num_tokens = self._pool.block_size, len(sequence.token_ids)
        names = [*sequence.block_keys, *([sequence.tail_key] if sequence.tail_key else [])]
        found = self._find_all(names)
        scores = self._scores(sequence, found)
        start = min(len(found) * size, num_tokens - 1)
        num_scored = max(sequence.num_scored, len(scores) * size)
        if sequence.scores_prompt and num_scored < sequence.prompt_len:
            start = min(start, num_scored - 1)
        whole, begins_inside = divmod(start, size)
        return Hit(
            shared=found[:whole],
            copied=found[whole] if begins_inside else None,
            num_tokens=start,
            scores=scores,
            missing=names[len(found)] if len(found) < len(names) else None,
        )

    def awaited(self, hit: Hit) -> Sequence | None:
        """The sequence that computes what ``hit`` misses next."""
        return None if hit.missing is None else self._claims.get(hit.missing)

    def begin(self, sequence: Sequence, hit: Hit) -> None:
        """``sequence`` has the blocks of ``hit`` and will compute the rest."""
        sequence.num_expected, sequence.num_computed = 0, hit.num_tokens
        sequence.num_published = len(hit.shared)
        if hit.scores:
            scores = [one for kept in hit.scores for one in kept.best(_num_best(sequence))]
            sequence.prompt_scores += scores[len(sequence.prompt_scores) :]
            sequence.num_scores_kept = max(sequence.num_scores_kept, len(hit.scores))
        if self._is_on and sequence.num_cached is None:
            sequence.num_cached = len(hit.shared) * self._pool.block_size
            self.num_queried += len(sequence.token_ids)
            self.num_hit += hit.num_tokens
        for key in _unpublished_keys(sequence):
            self._claims.setdefault(key, sequence)

    def publish(self, sequence: Sequence) -> None:
        """Make the blocks known that ``sequence`` has filled since the last time."""
        whole = sequence.num_computed // self._pool.block_size
        if not self._is_on or (whole == sequence.num_published and sequence.tail_key is None):
            return
        self._extend_keys(sequence, sequence.num_computed)
        for index in range(sequence.num_published, whole):
            self._publish(sequence, index, sequence.block_keys[index])
        sequence.num_published = whole
        if sequence.tail_key is not None and not sequence.num_uncomputed:
            self._publish(sequence, whole, sequence.tail_key)
            sequence.tail_key = None

    def keep_scores(self, sequence: Sequence) -> None:
        """Keep the prompt scores of the published blocks that ``sequence`` has scored whole."""
        num_best = _num_best(sequence)
        size = self._pool.block_size
        whole = min(sequence.num_scored // size, sequence.num_published)
        if num_best > MAX_KEPT_BEST:
            return
        for index in range(sequence.num_scores_kept, whole):
            block = self._pool.cached.find(sequence.block_keys[index])
            if block is not None:
                # the score of position p is the one at p - 1; the prompt's first token has none
                first = max(index * size - 1, 0)
                scores = sequence.prompt_scores[first : (index + 1) * size - 1]
                self._pool.cached.keep_scores(block, KeptScores(scores, num_best))
        sequence.num_scores_kept = max(whole, sequence.num_scores_kept)

    def leave(self, sequence: Sequence) -> None:
        """``sequence`` computes no more."""
        for key in _unpublished_keys(sequence):
            self._unclaim(sequence, key)
        sequence.num_computed = sequence.num_published = 0
        sequence.tail_key = None

    def _find_all(self, keys: Iterable[bytes]) -> list[int]:
        found: list[int] = []
        for key in keys:
            block = self._pool.cached.find(key)
            if block is None:
                break
            found.append(block)
        return found

    def _scores(self, sequence: Sequence, found: list[int]) -> list[KeptScores]:
        """The kept scores of the first whole blocks of ``found``, as far as they suffice."""
        if not sequence.scores_prompt:
            return []
        wanted, scores = _num_best(sequence), []
        for block in found[: sequence.prompt_len // self._pool.block_size]:
            kept = self._pool.cached.scores_of(block)
            if kept is None or kept.num_best < wanted:
                break
            scores.append(kept)
        return scores

    def _publish(self, sequence: Sequence, index: int, key: bytes) -> None:
        self._pool.cached.add(sequence.block_ids[index], key)
        self._unclaim(sequence, key)

    def _unclaim(self, sequence: Sequence, key: bytes) -> None:
        if self._claims.get(key) is sequence:
            del self._claims[key]

    def _extend_keys(self, sequence: Sequence, num_tokens: int) -> None:
        size, keys = self._pool.block_size, sequence.block_keys
        for end in range((len(keys) + 1) * size, num_tokens + 1, size):
            keys.append(_key_of(_last_key(sequence), sequence.token_ids[end - size : end]))


def _last_key(sequence: Sequence) -> bytes:
    if sequence.block_keys:
        return sequence.block_keys[-1]
    salt = sequence.cache_salt
    root = b"" if salt is None else b"salt:" + salt.encode(errors="surrogatepass")
    return hashlib.sha256(root).digest()


def _key_of(parent: bytes, token_ids: list[int]) -> bytes:
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()


def _unpublished_keys(sequence: Sequence) -> list[bytes]:
    keys = sequence.block_keys[sequence.num_published :]
    return keys if sequence.tail_key is None else [*keys, sequence.tail_key]


def _num_best(sequence: Sequence) -> int:
    """How many best candidates per prompt token are asked."""
    asked = sequence.params.prompt_logprobs
    assert asked is not None, "only a sequence that scores its prompt is asked for this"
    return asked if asked >= 0 else sys.maxsize
