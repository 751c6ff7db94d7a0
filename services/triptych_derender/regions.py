"""Where the regions of a response template begin and end in a text: transformers' ResponseParser.

The parser decides; this module only notes which characters it gave to which region, and carries its
state in a small form, so that the work per token and the state do not grow with the answer. It is
imported only where a template is used, because transformers takes most of a second to import.
"""

from collections.abc import Iterator, Set
from copy import copy
from typing import Any

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import ResponseTemplate

from triptych_derender.json_strings import StringState, hide_strings
from triptych_derender.spans import CONTEXT_LEN, RegionState, Span
from triptych_derender.tag_starts import first_characters
from triptych_derender.text_stream import characters

#: A delimiter that is longer than this (code points) is text: what is held back is bounded.
MAX_PENDING = 512


class RegionReader:
    """Reads texts by one template."""

    def __init__(self, template: ResponseTemplate, json_fields: Set[str] = frozenset()) -> None:
        """``json_fields``: regions of JSON, which do not end inside a string."""
        self.start_anchor = template.start_anchor_re
        self.implicit: str | None = template.implicit
        self.fields: list[str] = list(template.fields)
        self._fresh = _Regions(template, json_fields)

    def tag_starts(self, field: str | None) -> frozenset[str] | None:
        """First characters of the tags that may come in ``field`` (as states have it) after text.

        None: they may begin with anything.
        """
        regions = copy(self._fresh)
        regions.restore(RegionState(field))
        return regions.tag_starts()

    def read(
        self, state: RegionState, text: str, *, is_end: bool
    ) -> tuple[RegionState, list[Span]]:
        """The state after ``text``, and the spans that are certain now, in order, without gaps.

        ``text`` begins with what the previous call left over: the end that may still become a
        delimiter. At the end of an output nothing is left over.
        """
        regions = copy(self._fresh)
        regions.restore(state)
        regions.read(text, is_end=is_end)
        return regions.state(), regions.spans


class _Regions(ResponseParser):  # type: ignore[misc]  # transformers has no types
    """A ResponseParser that notes spans and parses no values.

    The three methods that it calls for text, opens and closes are replaced; each is called when
    ``_pos`` is the end of what was used, but ``_accumulate``, whose text begins there. The one that
    looks for delimiters does not see what is inside strings of JSON.
    """

    def __init__(self, template: ResponseTemplate, json_fields: Set[str]) -> None:
        super().__init__(template, prefix="")
        self._json_fields = json_fields
        is_literal = all(
            (field.open_re is None or field.open_literals)
            and (field.close_re is None or field.close_literals)
            for field in template.fields.values()
        )
        # A pattern may match differently when it sees more at once; then no cut may matter.
        self._step = MAX_PENDING if is_literal else 1

    def tag_starts(self) -> frozenset[str] | None:
        """First characters of the tags that may come now."""
        starts: set[str] = set()
        for kind, each in self._watchlist():
            is_open = kind == "open"
            pattern = each.open_re if is_open else each.close_re
            literals = each.open_literals if is_open else each.close_literals
            some = first_characters(pattern.pattern, literals)
            if some is None:
                return None
            starts |= some
        return frozenset(starts)

    def restore(self, state: RegionState) -> None:
        self.spans: list[Span] = []
        self._buffer = state.context
        self._pos = self._used = len(state.context)
        self._opened = state.is_open
        self._string: StringState = state.string
        if state.field is not None:
            self._current = state.field

    def state(self) -> RegionState:
        is_explicit = self._current != self._implicit_name
        return RegionState(
            field=self._current if is_explicit else None,
            is_open=self._opened,
            context=characters(self._buffer[max(0, self._pos - CONTEXT_LEN) : self._pos]),
            string=self._string,
        )

    def read(self, text: str, *, is_end: bool) -> None:
        for piece in self._pieces(text):
            self._buffer += piece
            self._process([], eos=False)
            while len(self._buffer) - self._pos > MAX_PENDING:
                self._accumulate([], self._buffer[self._pos])
                self._pos += 1
                self._process([], eos=False)
        if is_end:
            self._process([], eos=True)

    def _pieces(self, text: str) -> Iterator[str]:
        start = 0
        while start < len(text):
            num_pending = len(self._buffer) - self._pos
            end = start + min(self._step, MAX_PENDING + 1 - num_pending)
            yield text[start:end]
            start = end

    def _scan(self, watch: Any, eos: bool) -> Any:
        if self._current not in self._json_fields:
            return super()._scan(watch, eos)
        text = self._buffer
        shown, _ = hide_strings(text[self._pos :], self._string)
        self._buffer = text[: self._pos] + shown
        try:
            return super()._scan(watch, eos)
        finally:
            self._buffer = text

    def _accumulate(self, events: list[Any], text: str) -> None:
        if self._current in self._json_fields:
            _, self._string = hide_strings(text, self._string)
        if text:
            self._note("text", self._pos + len(text))
            self._opened = self._opened or self._current is not None

    def _open_explicit(self, events: list[Any], field: Any, match: Any) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.kind == "close" and self._close_start == match.start():
            # it closed because this one opens: the delimiter is the opening one's
            self._used -= len(last.text)
            last.text = ""
        self._current, self._opened, self._string = field.name, True, ""
        captures = {key: value for key, value in match.groupdict().items() if value is not None}
        self._note("open", self._pos, captures)

    def _close_current(self, events: list[Any]) -> None:
        self._close_start = self._used
        self._note("close", self._pos)
        self._reset_to_implicit()

    def _note(self, kind: Any, end: int, captures: dict[str, str] | None = None) -> None:
        text = self._buffer[self._used : end]
        self._used = end
        last = self.spans[-1] if self.spans else None
        if kind == "text" and last and last.kind == "text" and last.field == self._current:
            last.text += text
        else:
            self.spans.append(Span(kind, self._current, text, captures or {}))
