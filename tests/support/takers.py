"""Takers that note what they take."""

import random
from collections.abc import Callable

from triptych.mailbox import Taker
from triptych.wire import GenerateDelta


def drawn_taker(seed: int, share: float, note: Callable[[GenerateDelta], None]) -> Taker:
    """A taker of about ``share`` (0 to 1) of what it is offered and may take; ``note`` gets it."""
    rng = random.Random(seed)

    def take(delta: GenerateDelta) -> bool:
        is_end = any(choice.finish_reason is not None for choice in delta.choices)
        is_taken = not is_end and rng.random() < share
        if is_taken:
            note(delta)
        return is_taken

    return take
