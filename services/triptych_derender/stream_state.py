"""The opaque ``stream_state`` of the stateless stream: versioned, checked, and of bounded size.

It comes back from outside, so it is held to all that a state of ours satisfies: with a forged one a
client can only garble its own reply.
"""

import base64
import binascii
import zlib

import msgspec

from triptych.errors import InvalidRequestError
from triptych_derender.checks import MAX_CHOICES
from triptych_derender.choice import ChoiceState, Entry, TextRules
from triptych_derender.prompts import PromptState
from triptych_derender.stops import held_back_len
from triptych_derender.text_stream import incomplete_tail_len

_VERSION = "t1."
_CHECKSUM_BYTES = 4

_decoder = msgspec.msgpack.Decoder(PromptState)


def encode_state(state: PromptState) -> str:
    packed = msgspec.msgpack.encode(state)
    checksum = zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big")
    return _VERSION + base64.urlsafe_b64encode(checksum + packed).decode()


def decode_state(text: str | None, rules: TextRules) -> PromptState:
    """The state that an earlier answer returned; None begins a stream.

    Raises:
        InvalidRequestError: the text is not one of our states, or is of another version or request.
    """
    if text is None:
        return PromptState()
    if not text.startswith(_VERSION):
        raise _refusal(f"begins with {text[:8]!r}, not with {_VERSION!r}")
    try:
        content = base64.b64decode(text.removeprefix(_VERSION), altchars=b"-_", validate=True)
        checksum, packed = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        state = _decoder.decode(packed)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise _refusal("was cut or changed") from error
    if zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
        raise _refusal("was cut or changed")
    if not all(0 <= index < MAX_CHOICES for index in state.choices):
        raise _refusal("was changed")
    for choice in state.choices.values():
        _check_choice(choice, rules)
    return state


def _check_choice(state: ChoiceState, rules: TextRules) -> None:
    if held_back_len(state.tail, rules.stops) != len(state.tail):
        raise _refusal("holds text back for a stop string that this request does not have")
    is_ours = (
        _is_held(state.held)
        and len(state.tail) <= state.text_len
        and len(state.waiting) <= rules.max_waiting
        and all(_is_entry(entry, state, rules) for entry in state.waiting)
    )
    if not is_ours:
        raise _refusal("was changed, or is of another request")


def _is_entry(entry: Entry, state: ChoiceState, rules: TextRules) -> bool:
    """Whether an entry lies in the text and has as many values as candidates, and not too many."""
    most = rules.num_candidates
    return (
        entry.offset <= state.text_len
        and entry.end <= state.text_len
        and _is_held(entry.held)
        and len(entry.candidate_ids) == len(entry.logprobs)
        and (most is None or len(entry.candidate_ids) <= most)
    )


def _is_held(held: bytes) -> bool:
    """Bytes are held only while they end inside a character."""
    return not held or incomplete_tail_len(held) > 0


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"stream_state {reason}; send back what the previous answer returned, or null to begin",
        param="stream_state",
    )
