"""What a prompt already says of its answer: a tag that it opens, or text to be continued."""

import msgspec

from triptych.response_template import Channel, ResponseFamily
from triptych_derender.choice import TextRules
from triptych_derender.lanes import Entry
from triptych_derender.split_state import CallDelta, SplitState
from triptych_derender.splitter import Splitter
from triptych_derender.token_queue import TokenQueue

#: Prompt tokens that are searched for the answer's beginning first; then ever more.
_FIRST_WINDOW = 64


def split_start(
    rules: TextRules, family: ResponseFamily | None, prompt_ids: list[int] | None
) -> SplitState | None:
    """The state before the first token; None where nothing is split.

    A caller who does not give the prompt is taken to have one as the family's prompts are. A turn
    that goes on after a tool's result has calls in the prompt: they are none of the answer's.
    """
    if rules.split is None or family is None:
        return None
    prefix = family.prefix.encode()
    if prompt_ids is not None:
        prefix = _answer_in_prompt(rules, prompt_ids)
    queue = TokenQueue(rules.table, lead=prefix, entries=(), is_skipped=lambda entry: False)
    splitter = Splitter(SplitState(), rules.split, queue, _Nowhere())
    splitter.read(is_end=False)
    state = splitter.state()
    is_in_call = state.call is not None and state.call.is_certain
    return msgspec.structs.replace(state, num_calls=int(is_in_call))


def _answer_in_prompt(rules: TextRules, prompt_ids: list[int]) -> bytes:
    """The prompt's text after the last anchor; none if there is no anchor."""
    assert rules.split is not None
    window = _FIRST_WINDOW
    while True:
        raw = b"".join(map(rules.table.token_bytes, prompt_ids[-window:]))
        found = rules.split.template.after_anchor(raw.decode(errors="surrogateescape"))
        if found is not None or window >= len(prompt_ids):
            return (found or "").encode(errors="surrogateescape")
        window *= 4


class _Nowhere:
    """Takes what the prompt wrote: no token of the output."""

    def place(self, entry: Entry, shares: dict[Channel, bytes], num_later: int) -> None:
        raise AssertionError("a prompt has no output tokens")

    def add_call(self, delta: CallDelta) -> None:
        del delta

    def would_stop(self, channel: Channel, text: str) -> bool:
        del channel, text
        return False
