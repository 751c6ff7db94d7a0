"""Sampled tokens whose bytes are not all decided, oldest first."""

from collections import deque
from collections.abc import Callable, Sequence

from triptych_derender.lanes import Entry
from triptych_derender.token_table import TokenTable


class TokenQueue:
    """The queue; ``data`` is ``lead`` and then the bytes of its tokens.

    Args:
        table: bytes of every token id.
        lead: bytes that the prompt wrote at the beginning of the answer; no token of the output.
        entries: the tokens.
        is_skipped: whether text channels leave a token out.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        lead: bytes,
        entries: Sequence[Entry],
        is_skipped: Callable[[Entry], bool],
    ) -> None:
        self._table = table
        self._is_skipped = is_skipped
        self._dropped: Entry | None = None
        self.lead = lead
        self.entries = deque(entries)
        self.data = lead + b"".join(table.token_bytes(entry.token_id) for entry in entries)

    def push(self, entry: Entry, *, is_dropped: bool = False) -> None:
        """``is_dropped``: it is the stop token that no text shows, the last one."""
        if is_dropped:
            self._dropped = entry
        self.entries.append(entry)
        self.data += self._table.token_bytes(entry.token_id)

    def drop_lead(self, num_bytes: int) -> int:
        """How many of the next bytes are the prompt's; they go."""
        num_lead = min(num_bytes, len(self.lead))
        self.lead, self.data = self.lead[num_lead:], self.data[num_lead:]
        return num_lead

    def first_length(self) -> int | None:
        """How many bytes the first token has; None without one."""
        return self._length(self.entries[0]) if self.entries else None

    def pop(self) -> Entry:
        """Takes the first token."""
        entry = self.entries.popleft()
        self.data = self.data[self._length(entry) :]
        return entry

    def num_dropped(self, end: int) -> int:
        """How many of the bytes before ``end`` are the dropped token's."""
        if self._dropped is None:
            return 0
        return max(0, end - len(self.data) + self._length(self._dropped))

    def runs(self, start: int, num_bytes: int) -> list[tuple[bool, int]]:
        """The bytes from ``start`` on as runs of silent and of shown tokens: flag and length."""
        if not any(map(self._is_silent, self.entries)):
            return [(False, num_bytes)]
        position, end, runs = len(self.lead), start + num_bytes, []
        if start < position:
            runs.append((False, min(position, end) - start))
        for entry in self.entries:
            first, last = max(position, start), min(position + self._length(entry), end)
            if first < last:
                runs.append((self._is_silent(entry), last - first))
            position += self._length(entry)
        return runs

    def _is_silent(self, entry: Entry) -> bool:
        return entry is self._dropped or self._is_skipped(entry)

    def _length(self, entry: Entry) -> int:
        return len(self._table.token_bytes(entry.token_id))
