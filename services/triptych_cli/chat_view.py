"""How answers look in a terminal: tokens coloured by probability, and lists of candidates."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triptych.client.replies import Candidate, Entry

#: Least probability -> colour of the 256, each readable on black and on white.
COLOURS = ((0.9, 34), (0.5, 106), (0.2, 172), (0.05, 202), (0.0, 196))
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
#: What a terminal would obey, as it is shown; line ends and tabs stay.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


class Ink(Protocol):
    """Writes what has a probability, and what is beside the answer."""

    def token(self, text: str, probability: float) -> str: ...

    def plain(self, text: str) -> str: ...

    def aside(self, text: str) -> str: ...


class ColourInk:
    """For a terminal that shows colours."""

    def token(self, text: str, probability: float) -> str:
        return f"\x1b[38;5;{_colour(probability)}m{self.plain(text)}{_PLAIN}"

    def plain(self, text: str) -> str:
        return text.translate(_CONTROLS)

    def aside(self, text: str) -> str:
        return f"{_DIM}{self.plain(text)}{_PLAIN}"


class MarkInk:
    """For all else: the probability in percent stands behind each token.

    ``is_terminal``: control characters are made visible.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def token(self, text: str, probability: float) -> str:
        return f"{self.plain(text)}[{100 * probability:.0f}]" if text else ""

    def plain(self, text: str) -> str:
        return text.translate(_CONTROLS) if self._is_terminal else text

    def aside(self, text: str) -> str:
        return self.plain(text)


@dataclass(slots=True)
class TokenPainter:
    """One channel of an answer as it comes, each token in its colour.

    An entry comes with the end of its text at the latest, so text waits for its entry. Entries of
    tokens that the text leaves out, as the stop token, are passed over.
    """

    ink: Ink
    _text: str = ""
    _entries: list[Entry] = field(default_factory=list)

    def feed(self, text: str, entries: Sequence[Entry]) -> str:
        """What can be written now."""
        self._text += text
        self._entries += entries
        written = []
        while self._entries:
            entry = self._entries[0]
            if len(entry.token) > len(self._text) and entry.token.startswith(self._text):
                break
            del self._entries[0]
            if self._text.startswith(entry.token):
                self._text = self._text.removeprefix(entry.token)
                written.append(self.ink.token(entry.token, math.exp(entry.logprob)))
        return "".join(written)

    def end(self) -> str:
        """The rest, which has no entries."""
        rest, self._text = self._text, ""
        self._entries.clear()
        return self.ink.plain(rest)


def legend(ink: Ink) -> str:
    """The colours and what they mean."""
    bounds = [f"≥ {least:.0%}" for least, _ in COLOURS[:-1]] + [f"< {COLOURS[-2][0]:.0%}"]
    shown = (ink.token(text, least) for text, (least, _) in zip(bounds, COLOURS, strict=True))
    return "probability " + "  ".join(shown)


def candidate_lines(entries: Sequence[Entry], num_candidates: int, ink: Ink) -> list[str]:
    """A line per sampled token: its probability, itself, and the best others.

    It is one of the ``num_candidates``.
    """
    width = max((len(_name(entry)) for entry in entries), default=0)
    lines = []
    for entry in entries:
        others = [each for each in entry.top_logprobs if each.token_id != entry.token_id]
        listed = "  ".join(
            f"{_name(each)} {_percent(each)}" for each in others[: max(num_candidates - 1, 0)]
        )
        own = f"{_percent(entry):>6}  {_name(entry):<{width}}"
        lines.append(f"{own}  {ink.aside(listed)}".rstrip())
    return lines


def summary(entries: Sequence[Entry]) -> str:
    """Tokens, mean logprob and perplexity of an answer; every sampled token counts."""
    if not entries:
        return ""
    mean = math.fsum(entry.logprob for entry in entries) / len(entries)
    return f"{len(entries)} tokens, mean logprob {mean:.3f}, perplexity {math.exp(-mean):.3g}"


def _colour(probability: float) -> int:
    return next(colour for least, colour in COLOURS if probability >= least)


def _percent(candidate: Candidate) -> str:
    percent = 100 * math.exp(candidate.logprob)
    return f"{percent:.1f}%" if percent >= 0.05 else "<0.1%"


def _name(candidate: Candidate) -> str:
    """The token as a JSON text; its bytes where it has no text of its own."""
    if candidate.token or not candidate.bytes:
        return json.dumps(candidate.token, ensure_ascii=False).translate(_CONTROLS)
    return f"<{bytes(candidate.bytes).hex(' ')}>"
