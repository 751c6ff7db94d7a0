"""Tool calls in JSON, read as they come: the name first, then the arguments as the model writes.

A call is certain once its name is known and its arguments have begun well: an object whose first
value has begun, or that is complete. Until then nothing of it is passed on, so that text that only
looks like a call can still become content.
"""

import json
from dataclasses import dataclass
from typing import Literal

import msgspec

from triptych_derender.json_value import SPACES, JsonError, JsonValue
from triptych_derender.text_stream import characters

#: What may stand between calls that are not in a list.
_SEPARATORS = SPACES + ";,"
#: Longest key, and longest name, as JSON text (code points).
_MAX_STRING = 512


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a region writes its calls.

    ``name_capture``: the delimiter's named group that holds the name; the region is the arguments
    alone. Otherwise the region holds objects with these keys: one, several, or a list of them.
    """

    name_capture: str | None = None
    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class CallEvent:
    """What was found at ``position`` (code points) of the text that was read.

    ``object``: a call may begin there. ``call``: it is certain; ``text`` is its name.
    ``arguments``: ``text`` belongs to them. ``broken``: what follows is no call.
    """

    kind: Literal["object", "call", "arguments", "broken"]
    position: int
    text: str = ""


class CallReader(msgspec.Struct, array_like=True):
    """The state of reading one region.

    ``phase``: what comes next. ``text``: the string that is being read. ``arguments``: text of
    theirs that is not passed on yet. ``is_certain``: of the call that is being read.
    """

    phase: str = "start"
    is_list: bool = False
    key: str = ""
    text: str = ""
    name: str | None = None
    arguments: str = ""
    has_arguments: bool = False
    is_certain: bool = False
    value: JsonValue | None = None


def open_reader(form: CallForm, captures: dict[str, str]) -> CallReader:
    """The state at the start of a region whose delimiter had these named groups."""
    if form.name_capture is None:
        return CallReader()
    return CallReader(
        phase="value",
        key=form.argument_keys[0],
        name=captures.get(form.name_capture),
        value=JsonValue(),
    )


def read_calls(reader: CallReader, text: str, form: CallForm) -> list[CallEvent]:
    """The events of ``text``, which continues what was read before. Changes ``reader``."""
    return _Reading(reader, text, form).run()


def end_calls(reader: CallReader, form: CallForm) -> list[CallEvent]:
    """What the end of the region makes certain: a call whose region of arguments is empty."""
    if form.name_capture is None or reader.value != JsonValue() or reader.name is None:
        return []
    return [CallEvent("call", 0, reader.name), CallEvent("arguments", 0, "{}")]


class _Reading:
    """One text being read."""

    def __init__(self, reader: CallReader, text: str, form: CallForm) -> None:
        self._reader = reader
        self._text = text
        self._form = form
        self._events: list[CallEvent] = []

    def run(self) -> list[CallEvent]:
        position = 0
        try:
            while position < len(self._text):
                if self._reader.value is None:
                    self._mark(self._text[position], position)
                    position += 1
                else:
                    position = self._read_value(self._reader.value, position)
        except JsonError as error:
            self._events.append(CallEvent("broken", error.position))
        return self._events

    def _mark(self, char: str, position: int) -> None:
        """One character outside of keys and values."""
        reader, phase = self._reader, self._reader.phase
        is_bare = phase == "between" and not reader.is_list
        if char in (_SEPARATORS if is_bare else SPACES):
            return
        if char == "[" and phase == "start":
            reader.phase, reader.is_list = "item", True
        elif char == "{" and (is_bare or phase in ("start", "item")):
            self._open_object(position)
        elif char == '"' and phase in ("first_key", "key"):
            reader.phase, reader.text, reader.value = "string", char, JsonValue("s")
        elif char == ":" and phase == "colon":
            reader.phase, reader.text, reader.value = "value", "", JsonValue()
        elif char == "," and phase in ("after", "between"):
            reader.phase = "key" if phase == "after" else "item"
        elif char == "}" and phase in ("first_key", "after"):
            self._close_object(position)
        elif char == "]" and phase in ("item", "between"):
            reader.phase = "end"
        else:
            raise JsonError(position)

    def _open_object(self, position: int) -> None:
        reader = self._reader
        reader.phase, reader.name, reader.arguments = "first_key", None, ""
        reader.has_arguments = reader.is_certain = False
        self._events.append(CallEvent("object", position))

    def _close_object(self, position: int) -> None:
        if self._reader.name is None or not self._reader.has_arguments:
            raise JsonError(position)
        self._reader.phase = "between"

    def _read_value(self, value: JsonValue, start: int) -> int:
        """Reads on in a key or a value; the position after what was read."""
        is_arguments = self._is_arguments()
        if is_arguments and value == JsonValue():
            char = self._text[start]
            if char in SPACES:
                return start + 1
            if char != "{" or self._reader.has_arguments:
                raise JsonError(start)
        try:
            end, is_complete = value.read(self._text, start)
        except JsonError as error:
            self._take(value, self._text[start : error.position], error.position, is_arguments)
            raise
        self._take(value, self._text[start:end], end, is_arguments)
        if is_complete:
            self._end_value(end, is_arguments)
        return end

    def _is_arguments(self) -> bool:
        reader = self._reader
        return reader.phase == "value" and reader.key in self._form.argument_keys

    def _take(self, value: JsonValue, text: str, end: int, is_arguments: bool) -> None:
        reader = self._reader
        if not is_arguments:
            is_kept = reader.phase == "string" or reader.key == self._form.name_key
            reader.text += text if is_kept else ""
            if len(reader.text) > _MAX_STRING:
                raise JsonError(end - 1)
        elif reader.is_certain:
            self._events.append(CallEvent("arguments", end, text))
        else:
            reader.arguments += text
            if value.has_member:
                self._start(end)

    def _start(self, end: int) -> None:
        """The call is certain if its name is known."""
        reader = self._reader
        if reader.name is not None and not reader.is_certain:
            self._events.append(CallEvent("call", end, reader.name))
            self._events.append(CallEvent("arguments", end, reader.arguments))
            reader.is_certain, reader.arguments = True, ""

    def _end_value(self, end: int, is_arguments: bool) -> None:
        reader, form = self._reader, self._form
        reader.value = None
        if reader.phase == "string":
            reader.phase, reader.key = "colon", characters(json.loads(reader.text))
            return
        reader.phase = "after"
        if is_arguments:
            reader.has_arguments = True
            reader.phase = "after" if form.name_capture is None else "end"
        elif reader.key == form.name_key and reader.name is None:
            name = json.loads(reader.text)
            if not isinstance(name, str) or not name:
                raise JsonError(end - 1)
            reader.name = characters(name)
            if reader.has_arguments:
                self._start(end)
