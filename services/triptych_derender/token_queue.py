"""Sampled tokens whose bytes no channel has yet, oldest first."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

from triptych_derender.lanes import Entry
from triptych_derender.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Share:
    """What one channel gets of a token: the whole of it, or some bytes (``entry.part``).

    ``is_first``: no other channel got anything of it before.
    """

    entry: Entry
    is_first: bool


class TokenQueue:
    """The queue during one delta; ``data`` is ``lead`` and then the bytes of its tokens.

    Args:
        table: bytes of every token id.
        lead: bytes that the prompt wrote at the beginning of the answer; no token of the output.
        entries: the tokens.
        num_taken: how many bytes of the first token are gone already.
        is_skipped: whether text channels leave a token out.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        lead: bytes,
        entries: Sequence[Entry],
        num_taken: int,
        is_skipped: Callable[[Entry], bool],
    ) -> None:
        self._table = table
        self._is_skipped = is_skipped
        self._dropped: Entry | None = None
        self.lead = lead
        self.entries = deque(entries)
        self.num_taken = num_taken
        raw = b"".join(table.token_bytes(entry.token_id) for entry in entries)
        self.data = lead + raw[num_taken:]

    def push(self, entry: Entry, *, is_dropped: bool = False) -> None:
        """``is_dropped``: it is the stop token that no text shows, the last one."""
        if is_dropped:
            self._dropped = entry
        self.entries.append(entry)
        self.data += self._table.token_bytes(entry.token_id)

    def num_dropped(self, end: int) -> int:
        """How many of the bytes before ``end`` are the dropped token's."""
        if self._dropped is None:
            return 0
        return max(0, end - len(self.data) + self._length(self._dropped))

    def runs(self, start: int, num_bytes: int) -> list[tuple[bool, int]]:
        """The bytes from ``start`` on as runs of silent and of shown tokens: flag and length."""
        if not any(map(self._is_silent, self.entries)):
            return [(False, num_bytes)]
        position, end, runs = 0, start + num_bytes, []
        for is_silent, length in self._lengths():
            first, last = max(position, start), min(position + length, end)
            if first < last:
                runs.append((is_silent, last - first))
            position += length
        return runs

    def take(self, num_bytes: int) -> Iterator[Share]:
        """The next ``num_bytes`` by token; tokens without bytes go with what is beside them."""
        num_lead = min(num_bytes, len(self.lead))
        self.lead, self.data = self.lead[num_lead:], self.data[num_bytes:]
        num_left = num_bytes - num_lead
        while self.entries and (num_left or not self._length(self.entries[0])):
            entry, start = self.entries[0], self.num_taken
            raw = self._table.token_bytes(entry.token_id)
            end = min(len(raw), start + num_left)
            share = entry
            if end - start < len(raw):
                share = copy(entry)
                share.part = raw[start:end]
            yield Share(share, start == 0)
            num_left -= end - start
            self.num_taken = 0 if end == len(raw) else end
            if not self.num_taken:
                self.entries.popleft()

    def _is_silent(self, entry: Entry) -> bool:
        return entry is self._dropped or self._is_skipped(entry)

    def _length(self, entry: Entry) -> int:
        return len(self._table.token_bytes(entry.token_id))

    def _lengths(self) -> Iterator[tuple[bool, int]]:
        yield False, len(self.lead)
        num_taken = self.num_taken
        for entry in self.entries:
            yield self._is_silent(entry), self._length(entry) - num_taken
            num_taken = 0
