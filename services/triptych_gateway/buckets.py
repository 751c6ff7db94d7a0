"""Rates of use: a bucket that fills evenly and is full after a minute."""

import time
from collections.abc import Callable

_MINUTE_S = 60.0


class Bucket:
    """Room for ``per_minute`` units. What takes more than there is makes the next ones wait."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds."""
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    @property
    def level(self) -> float:
        """Units that are there; less than zero after too much was taken."""
        now = self._clock()
        gained = (now - self._at) * self.per_minute / _MINUTE_S
        self._level, self._at = min(self._level + gained, float(self.per_minute)), now
        return self._level

    def take(self, units: float) -> None:
        """Take ``units``, whether there are as many or not."""
        self._level = self.level - units

    @property
    def wait_s(self) -> float:
        """Seconds until one unit is there; 0 when it is."""
        return max(0.0, 1 - self.level) * _MINUTE_S / self.per_minute

    @property
    def full_in_s(self) -> float:
        """Seconds until it is full if nobody takes more."""
        return (self.per_minute - self.level) * _MINUTE_S / self.per_minute
