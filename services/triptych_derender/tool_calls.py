"""OpenAI's tool calls, whole and as a stream's deltas."""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from triptych_derender.formats import ReplyContext
from triptych_derender.split_state import CallDelta

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ToolFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call, or what a chunk adds to one: ``index`` is in chunks, id and name come first."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: ToolFunction


def whole_calls(deltas: Sequence[CallDelta], context: ReplyContext, choice: int) -> list[ToolCall]:
    """The calls of a whole message."""
    return [
        ToolCall(
            id=_call_id(context, choice, delta.index),
            type="function",
            function=ToolFunction(name=delta.name or "", arguments=delta.arguments),
        )
        for delta in _joined(deltas)
    ]


def call_deltas(deltas: Sequence[CallDelta], context: ReplyContext, choice: int) -> list[ToolCall]:
    """What one chunk adds, each call once."""
    return [
        ToolCall(
            index=delta.index,
            id=UNSET if delta.name is None else _call_id(context, choice, delta.index),
            type=UNSET if delta.name is None else "function",
            function=ToolFunction(name=delta.name or UNSET, arguments=delta.arguments),
        )
        for delta in _joined(deltas)
    ]


def _joined(deltas: Sequence[CallDelta]) -> list[CallDelta]:
    """One delta per call, in order."""
    joined: dict[int, CallDelta] = {}
    for delta in deltas:
        before = joined.get(delta.index, CallDelta(delta.index))
        joined[delta.index] = CallDelta(
            delta.index, before.name or delta.name, before.arguments + delta.arguments
        )
    return list(joined.values())


def _call_id(context: ReplyContext, choice: int, index: int) -> str:
    """The same in every chunk, without state: made from the reply's id."""
    digest = hashlib.sha256(f"{context.request_id} {choice} {index}".encode()).digest()
    if context.call_id_chars is None:
        return f"call_{digest.hex()[:24]}"
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[: context.call_id_chars])
