"""The opaque ``stream_state`` of the stateless stream: versioned, checked, and of bounded size.

It comes back from outside, so it is held to all that a state of ours satisfies: with a forged one a
client can only garble its own reply. With a key it is signed, and a forged one is refused.
"""

import base64
import binascii
import hashlib
import hmac
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from triptych.errors import InvalidRequestError
from triptych.wire import MAX_TOKEN_ID
from triptych_derender.checks import MAX_CHOICES
from triptych_derender.choice import ChoiceState, TextRules
from triptych_derender.lanes import Candidates, Entry, LaneState, max_waiting
from triptych_derender.prompts import PromptState
from triptych_derender.split_state import QueuedTokens, SplitRules, SplitState
from triptych_derender.stops import held_back_len
from triptych_derender.text_stream import incomplete_tail_len

_VERSION = "t2."
_CHECKSUM_BYTES = 4
_SIGNATURE_BYTES = 16
#: Larger states are compressed, and none is larger than this before it is.
_MIN_COMPRESSED_BYTES = 1024
_MAX_PACKED_BYTES = 2**26


class StateCodec:
    """States to text and back.

    Args:
        key: signs them; the same for all derenders of a deployment. None = a checksum only.
        origin: names what a state is bound to, so that another model's is refused.
    """

    def __init__(self, key: bytes | None, origin: str) -> None:
        self._key = key
        self._origin = origin.encode()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
        self._decoder = msgspec.msgpack.Decoder(PromptState, dec_hook=_unpack)

    def encode(self, state: PromptState) -> str:
        packed = _compressed(self._encoder.encode(state))
        return _VERSION + base64.urlsafe_b64encode(self._mark(packed) + packed).decode()

    def decode(self, text: str | None, rules: TextRules) -> PromptState:
        """The state that an earlier answer returned; None begins a stream.

        Raises:
            InvalidRequestError: not one of our states, or of another version, request or key.
        """
        if text is None:
            return PromptState()
        if not text.startswith(_VERSION):
            raise refusal(f"begins with {text[:8]!r}, not with {_VERSION!r}")
        try:
            content = base64.b64decode(text.removeprefix(_VERSION), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise refusal("was cut or changed") from error
        num_mark = _CHECKSUM_BYTES if self._key is None else _SIGNATURE_BYTES
        mark, packed = content[:num_mark], content[num_mark:]
        if base64.urlsafe_b64encode(content).decode() != text.removeprefix(_VERSION):
            raise refusal("was changed")  # in the bits of its last letter that stand for nothing
        if not hmac.compare_digest(mark, self._mark(packed)):
            raise refusal("was cut or changed, or comes from another deployment")
        try:
            state = self._decoder.decode(_decompressed(packed))
        except (ValueError, msgspec.DecodeError, zlib.error) as error:
            raise refusal("was cut or changed") from error
        if not all(0 <= index < MAX_CHOICES for index in state.choices):
            raise refusal("was changed")
        for choice in state.choices.values():
            _check_choice(choice, rules)
        return state

    def _mark(self, packed: bytes) -> bytes:
        """Signature or checksum; it covers the origin, which is not sent."""
        covered = self._origin + b"\0" + packed
        if self._key is None:
            return zlib.crc32(covered).to_bytes(_CHECKSUM_BYTES, "big")
        return hmac.digest(self._key, covered, hashlib.sha256)[:_SIGNATURE_BYTES]


def refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"stream_state {reason}; send back what the previous answer returned, or null to begin",
        param="stream_state",
    )


def _compressed(packed: bytes) -> bytes:
    """Behind a byte that says whether it is; small states are not."""
    if len(packed) < _MIN_COMPRESSED_BYTES:
        return b"\0" + packed
    return b"\1" + zlib.compress(packed, level=1)


def _decompressed(content: bytes) -> bytes:
    if not content.startswith(b"\1"):
        return content[1:]
    reader = zlib.decompressobj()
    packed = reader.decompress(content[1:], _MAX_PACKED_BYTES)
    if reader.unconsumed_tail:
        raise ValueError("too large")
    return packed


def _pack(value: Any) -> Any:
    """Columns of ids as uint32 and of logprobs as float32: answers show no more than that."""
    if isinstance(value, Candidates):
        return _columns(value.ids, value.logprobs)
    assert isinstance(value, QueuedTokens)
    ids = array("I", [entry.token_id for entry in value.entries]).tobytes()
    return [ids, [entry.candidates for entry in value.entries if entry.candidates.ids]]


def _columns(ids: Sequence[int], logprobs: Sequence[float]) -> bytes:
    return array("I", ids).tobytes() + array("f", logprobs).tobytes()


def _unpack(kind: type, packed: Any) -> Any:
    if kind is Candidates:
        return _unpack_candidates(packed)
    ids, columns = packed
    token_ids = _unpack_ids(ids)
    candidates = [_unpack_candidates(each) for each in columns]
    if len(candidates) not in (0, len(token_ids)):
        raise ValueError("tokens without candidates among others")
    candidates = candidates or [Candidates()] * len(token_ids)
    return QueuedTokens([Entry(*each) for each in zip(token_ids, candidates, strict=True)])


def _unpack_candidates(packed: Any) -> Candidates:
    ids = _unpack_ids(packed[: len(packed) // 2])
    logprobs = array("f")
    logprobs.frombytes(packed[len(packed) // 2 :])
    if len(ids) != len(logprobs):
        raise ValueError("more ids than values")
    return Candidates(ids, logprobs.tolist())


def _unpack_ids(packed: Any) -> list[int]:
    ids = array("I")
    ids.frombytes(packed)
    if any(token_id > MAX_TOKEN_ID for token_id in ids):
        raise ValueError("a token id is too large")
    return ids.tolist()


def _check_choice(state: ChoiceState, rules: TextRules) -> None:
    if (state.split is None) != (rules.split is None):
        raise refusal("is of a request that is parsed otherwise")
    for lane in state.lanes.values():
        _check_lane(lane, rules)
    if state.split is not None and rules.split is not None:
        _check_split(state.split, rules.split, rules)


def _check_lane(state: LaneState, rules: TextRules) -> None:
    if held_back_len(state.tail, rules.stops) != len(state.tail):
        raise refusal("holds text back for a stop string that this request does not have")
    is_ours = (
        _is_held(state.held)
        and len(state.tail) <= state.text_len
        and len(state.waiting) <= max_waiting(rules.stops)
        and all(_is_entry(entry, state.text_len, rules) for entry in state.waiting)
    )
    if not is_ours:
        raise refusal("was changed, or is of another request")


def _check_split(state: SplitState, split: SplitRules, rules: TextRules) -> None:
    waiting = state.waiting.entries
    num_bytes = len(state.lead) + sum(
        len(rules.table.token_bytes(entry.token_id)) for entry in waiting
    )
    is_ours = (
        split.template.knows(state.region.field)
        and all(_is_entry(entry, 0, rules) for entry in waiting)
        and sum(length for _, length in state.segments) <= num_bytes
    )
    if not is_ours:
        raise refusal("was changed, or is of another request")


def _is_entry(entry: Entry, text_len: int, rules: TextRules) -> bool:
    """Whether an entry lies in the text and has not too many candidates."""
    most = rules.num_candidates
    return (
        entry.offset <= text_len
        and entry.end <= text_len
        and _is_held(entry.held)
        and (most is None or len(entry.candidates.ids) <= most)
    )


def _is_held(held: bytes) -> bool:
    """Bytes are held only while they end inside a character."""
    return not held or incomplete_tail_len(held) > 0
