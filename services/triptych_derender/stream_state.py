"""The opaque ``stream_state`` of the stateless stream: versioned, checked, and of bounded size."""

import base64
import binascii
import zlib

import msgspec

from triptych.errors import InvalidRequestError
from triptych_derender.prompts import PromptState

_VERSION = "t1."
_CHECKSUM_BYTES = 4

_decoder = msgspec.msgpack.Decoder(PromptState)


def encode_state(state: PromptState) -> str:
    packed = msgspec.msgpack.encode(state)
    checksum = zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big")
    return _VERSION + base64.urlsafe_b64encode(checksum + packed).decode()


def decode_state(text: str | None) -> PromptState:
    """The state that an earlier answer returned; None begins a stream.

    Raises:
        InvalidRequestError: the text is not one of our states, or is of another version.
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
    is_whole = zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") == checksum
    if not is_whole or not _is_consistent(state):
        raise _refusal("was cut or changed")
    return state


def _is_consistent(state: PromptState) -> bool:
    """Whether each waiting entry has as many values as candidates."""
    return all(
        len(entry.candidate_ids) == len(entry.logprobs)
        for choice in state.choices.values()
        for entry in choice.waiting
    )


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"stream_state {reason}; send back what the previous answer returned, or null to begin",
        param="stream_state",
    )
