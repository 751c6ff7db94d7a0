"""KV blocks that can be found by what they hold, and which of those nobody uses."""

from triptych_generate.kept_scores import KeptScores


class CachedBlocks:
    """Keys of blocks, the prompt scores that are kept with them, and the order of eviction.

    A key stands for all token ids from the sequence's start to the block's end. A block may have
    two: that of the prompt's last ids, which fill it in part, and later that of the whole block.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, list[bytes]] = {}
        self._scores: dict[int, KeptScores] = {}
        self._idle: dict[int, None] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def find(self, key: bytes) -> int | None:
        return self._blocks.get(key)

    def add(self, block: int, key: bytes) -> None:
        """Make ``block`` known as ``key``, unless another block is."""
        if key not in self._blocks:
            self._blocks[key] = block
            self._keys.setdefault(block, []).append(key)

    def remove(self, block: int) -> None:
        """Forget all about ``block``."""
        for key in self._keys.pop(block, ()):
            del self._blocks[key]
        self._scores.pop(block, None)
        self._idle.pop(block, None)

    def scores_of(self, block: int) -> KeptScores | None:
        return self._scores.get(block)

    def keep_scores(self, block: int, scores: KeptScores) -> None:
        """Keep ``scores`` with ``block`` unless richer ones are kept already."""
        kept = self._scores.get(block)
        if kept is None or kept.num_best < scores.num_best:
            self._scores[block] = scores

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def rest(self, block: int) -> None:
        """Nobody uses ``block`` any more; of all idle ones it is evicted last."""
        self._idle.pop(block, None)
        self._idle[block] = None

    def wake(self, block: int) -> None:
        """``block`` is used again."""
        self._idle.pop(block, None)

    def evict(self) -> int:
        """Forget the block that has been idle for longest, and return it."""
        block = next(iter(self._idle))
        self.remove(block)
        return block

    def check(self) -> list[int]:
        """The idle blocks; asserts that keys and blocks agree."""
        pairs = {(key, block) for block, keys in self._keys.items() for key in keys}
        assert pairs == set(self._blocks.items()), "keys and blocks disagree"
        assert set(self._scores) <= set(self._keys), "scores of a block without a key"
        assert set(self._idle) <= set(self._keys), "an idle block cannot be found"
        return list(self._idle)
