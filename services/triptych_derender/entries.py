"""Logprob entries as JSON: chat's list of objects, completions' arrays, and prompt logprobs."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from triptych.float32 import float32_texts
from triptych.logprobs import Candidate, Logprobs
from triptych.wire import MAX_TOKEN_ID
from triptych_derender.fragments import (
    ChatTemplates,
    CompletionFragments,
    TokenNames,
    candidate_template,
    id_name,
)
from triptych_derender.lanes import Entry
from triptych_derender.text_stream import push_bytes
from triptych_derender.token_table import TokenTable

#: A position's object from candidates': its own without the last brace, and those that are shown.
POSITION = b'%b,"top_logprobs":[%b]}'


class EntryWriter:
    """Writes entries; keeps the fragments of tokens that follow complete characters.

    ``templates``: chat's objects of such tokens.
    """

    def __init__(self, table: TokenTable, *, as_token_ids: bool) -> None:
        self._table = table
        self._as_token_ids = as_token_ids
        self.templates = ChatTemplates(self._names(b"", skip_special=True))
        self._completion = CompletionFragments(self._names(b"", skip_special=True))

    def chat(
        self,
        entries: Sequence[Entry],
        *,
        top_logprobs: int | None,
        skip_special: bool,
        hides_tokens: bool = False,
    ) -> bytes:
        """One channel's list of chat's ``logprobs``; a position shows its first ``top_logprobs``.

        A token without a score is left out. ``hides_tokens``: of a token that another channel
        shares, id and alternatives are left out.
        """
        values = _value_texts(entries)
        written = []
        for entry in entries:
            ids, held = entry.candidates.ids, entry.held
            if not ids:
                continue
            texts = list(islice(values, len(ids)))
            by_id = self.templates if not held else self._held_chat(held, skip_special=skip_special)
            templates = [by_id[token_id] for token_id in ids]
            own = templates[0]
            if entry.part is not None:
                own = self._part(entry, entry.part, is_hidden=hides_tokens)
                templates = [own] if hides_tokens else templates
            shown = templates[:top_logprobs]
            position = POSITION % (own[:-1], b",".join(shown))
            written.append(position % (texts[0], *texts[: len(shown)]))
        return b"[%b]" % b",".join(written)

    def completion(self, entries: Sequence[Entry], *, skip_special: bool) -> bytes:
        """Completions' ``logprobs`` object. A token without a score has null in two arrays."""
        values = _value_texts(entries)
        tokens, token_logprobs, top_logprobs = [], [], []
        for entry in entries:
            fragments = self._completion_fragments(entry.held, skip_special=skip_special)
            texts = list(islice(values, len(entry.candidates.ids)))
            tokens.append(fragments[entry.token_id].token)
            token_logprobs.append(texts[0] if texts else b"null")
            top_logprobs.append(_candidate_dict(fragments, entry.candidates.ids, texts))
        return b'{"text_offset":[%b],"token_logprobs":[%b],"tokens":[%b],"top_logprobs":[%b]}' % (
            b",".join(b"%d" % entry.offset for entry in entries),
            b",".join(token_logprobs),
            b",".join(tokens),
            b",".join(top_logprobs),
        )

    def _part(self, entry: Entry, part: bytes, *, is_hidden: bool) -> bytes:
        """The object of a token that spans channels, with what this one has of it."""
        if is_hidden or not self._as_token_ids:
            token = push_bytes(entry.held, part)[0]
        else:
            token = id_name(entry.token_id)
        return candidate_template(token, part, None if is_hidden else entry.token_id)

    def _names(self, held: bytes, *, skip_special: bool) -> TokenNames:
        return TokenNames(
            self._table, held=held, skip_special=skip_special, as_token_ids=self._as_token_ids
        )

    def _held_chat(self, held: bytes, *, skip_special: bool) -> ChatTemplates:
        return ChatTemplates(self._names(held, skip_special=skip_special))

    def _completion_fragments(self, held: bytes, *, skip_special: bool) -> CompletionFragments:
        if not held:
            return self._completion
        return CompletionFragments(self._names(held, skip_special=skip_special))


def prompt_logprobs_json(
    table: TokenTable, logprobs: Logprobs, token_ids: list[int] | None, *, skip_special: bool
) -> bytes:
    """``prompt_logprobs``: null or ``{"id": {logprob, rank, decoded_token}}`` per prompt token."""
    values = iter(float32_texts(logprobs.logprobs))
    clean = CompletionFragments(TokenNames(table))
    held, written = b"", []
    prompt_ids = token_ids or _first_ids(logprobs)
    for prompt_id, candidates in zip(prompt_ids, logprobs.positions(), strict=True):
        names = TokenNames(table, held=held, skip_special=skip_special)
        fragments = CompletionFragments(names) if held else clean
        texts = islice(values, len(candidates))
        written.append(_prompt_position(candidates, texts, fragments))
        if not (skip_special and prompt_id in table.special_ids):
            held = push_bytes(held, table.token_bytes(prompt_id))[1]
    return b"[%b]" % b",".join(written)


def _prompt_position(
    candidates: list[Candidate], texts: Iterable[bytes], fragments: CompletionFragments
) -> bytes:
    if not candidates:
        return b"null"
    items = (
        b'"%d":{"logprob":%b,"rank":%d,"decoded_token":%b}'
        % (candidate.token_id, text, candidate.rank, fragments[candidate.token_id].token)
        for candidate, text in zip(candidates, texts, strict=True)
    )
    return b"{%b}" % b",".join(items)


def _first_ids(logprobs: Logprobs) -> list[int]:
    """The prompt's ids as its scores give them; the first one has no score and stays unknown."""
    return [
        candidates[0].token_id if candidates else MAX_TOKEN_ID
        for candidates in logprobs.positions()
    ]


def _value_texts(entries: Sequence[Entry]) -> Iterator[bytes]:
    values: list[float] = []
    for entry in entries:
        values += entry.candidates.logprobs
    return iter(float32_texts(values))


def _candidate_dict(
    fragments: CompletionFragments, token_ids: Sequence[int], texts: list[bytes]
) -> bytes:
    if not texts:
        return b"null"
    return b"{%b}" % fragments.items_template(token_ids) % tuple(texts)
