"""The short way of plain tokens to their chat chunk: whole characters that go out at once.

Nearly all tokens of a stream are plain. The general way (``Choice.feed``, ``ChatFormat.chunks``)
makes the same bytes of them through a dozen objects. Those cost most where a process sleeps between
two tokens: what it touches then is in no cache (docs/decisions/0026-cost-of-a-token.md).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from triptych.float32 import float32_texts
from triptych.response_template import Channel
from triptych.wire import ChoiceDelta
from triptych_derender.choice import Choice
from triptych_derender.entries import POSITION
from triptych_derender.fragments import ChatTemplates

_encode = msgspec.json.Encoder().encode


class PlainForm(NamedTuple):
    """A chunk without what each has of its own.

    ``parts``: what is before the text, before the logprobs, before the token ids, and after them.
    ``logprobs_parts``: what is before a channel's positions and after them; None where the client
    did not ask. ``num_shown``: most candidates of a position; None = all. ``shows_ids``: the client
    asked for token ids.
    """

    parts: tuple[bytes, bytes, bytes, bytes]
    logprobs_parts: tuple[bytes, bytes] | None
    templates: ChatTemplates
    num_shown: int | None
    shows_ids: bool


#: From a choice's index, its channels, and the tokens' channel.
PlainFormOf = Callable[[int, Sequence[Channel], Channel], PlainForm]


class PlainChoice:
    """The short way of one choice."""

    __slots__ = ("_choice", "_form_of", "_forms", "_special_ids", "_texts")

    def __init__(self, choice: Choice, form_of: Callable[[Channel], PlainForm]) -> None:
        rules = choice.rules
        self._choice = choice
        self._form_of = form_of
        self._forms: dict[Channel, PlainForm] = {}
        self._texts = rules.table.text_of
        self._special_ids = rules.table.special_ids if rules.skip_special else frozenset()

    def chunk(self, delta: ChoiceDelta) -> bytes | None:
        """The chunk of ``delta``; None: it is not plain, and nothing has changed."""
        text = None if delta.finish_reason is not None else self._text(delta.token_ids)
        channel = self._choice.plain_channel(text) if text else None
        if text is None or channel is None:
            return None
        form = self._forms.get(channel)
        if form is None:
            form = self._forms[channel] = self._form_of(channel)
        logprobs = _logprobs(delta, form)
        if logprobs is None:
            return None
        self._choice.take_plain(channel, text, len(delta.token_ids))
        ids = _encode(delta.token_ids) if form.shows_ids else b"null"
        before_text, before_logprobs, before_ids, end = form.parts
        encoded = _encode(text)
        return b"".join((before_text, encoded, before_logprobs, logprobs, before_ids, ids, end))

    def _text(self, token_ids: Sequence[int]) -> str | None:
        """The text of tokens that are whole characters; None of others."""
        texts, special_ids, parts = self._texts, self._special_ids, []
        for token_id in token_ids:
            text = texts[token_id] if token_id < len(texts) else None
            if not text or token_id in special_ids:
                return None
            parts.append(text)
        return "".join(parts)


def _logprobs(delta: ChoiceDelta, form: PlainForm) -> bytes | None:
    """The ``logprobs`` field; None where they do not belong to the tokens."""
    logprobs, templates, num_shown = delta.logprobs, form.templates, form.num_shown
    if logprobs is None:
        return b"null"
    ids, counts = logprobs.token_ids, logprobs.counts
    if len(counts) != len(delta.token_ids):
        return None
    texts, positions, start = float32_texts(logprobs.logprobs), [], 0
    for position, count in enumerate(counts):
        if not count or ids[start] != delta.token_ids[position]:
            return None
        end = start + (count if num_shown is None or num_shown > count else num_shown)
        shown = [templates[each] for each in ids[start:end]]
        own = shown[0] if shown else templates[ids[start]]
        template = POSITION % (own[:-1], b",".join(shown))
        positions.append(template % (texts[start], *texts[start:end]))
        start += count
    if form.logprobs_parts is None:
        return b"null"
    before, after = form.logprobs_parts
    return b"%b%b%b" % (before, b",".join(positions), after)
