"""One JSON value, read as it comes: where it ends, or where it stops being JSON (RFC 8259)."""

import re

import msgspec

SPACES = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_DIGITS = "0123456789"
#: In a number: what each state may read, and the state after it; and where the number may end.
_NUMBER = {
    "-": {"0": "0", "123456789": "1"},
    "0": {".": ".", "eE": "E"},
    "1": {_DIGITS: "1", ".": ".", "eE": "E"},
    ".": {_DIGITS: "2"},
    "2": {_DIGITS: "2", "eE": "E"},
    "E": {"+-": "+", _DIGITS: "3"},
    "+": {_DIGITS: "3"},
    "3": {_DIGITS: "3"},
}
_NUMBER_ENDS = "0123"


class JsonError(ValueError):
    """The character at ``position`` cannot follow what was read."""

    def __init__(self, position: int) -> None:
        super().__init__(f"not JSON at {position}")
        self.position = position


class JsonValue(msgspec.Struct, array_like=True):
    """The state of one value: what may come, and the brackets that are open.

    ``expect``: ``v`` a value, ``V`` a value or ``]``, ``k`` a key, ``K`` a key or ``}``, ``c`` a
    colon, ``a`` a comma or the closing bracket, ``s`` inside a string and ``q`` inside a key,
    ``e`` and ``r`` after a backslash there, ``l`` inside a literal, or a state of a number.
    ``rest``: what is left of a literal, or of an escape's hex digits.
    ``has_member``: a value inside the brackets has begun, or the brackets are closed.
    """

    expect: str = "v"
    stack: str = ""
    rest: str = ""
    has_member: bool = False

    def read(self, text: str, start: int) -> tuple[int, bool]:
        """Reads from ``start``: where it stopped, and whether the value is complete there.

        Raises:
            JsonError: no JSON value goes on like this.
        """
        position = start
        while position < len(text):
            if self.expect in "sq" and (plain := _PLAIN.match(text, position)):
                position = plain.end()
                continue
            is_used = self._step(text[position], position)
            position += is_used
            if not self.stack and self.expect == "a":
                return position, True
        return position, False

    def _step(self, char: str, position: int) -> bool:
        """Reads one character; False where it ends a number and belongs to what follows."""
        if self.expect in _NUMBER:
            return self._number(char, position)
        if self.expect in "sqer" or self.rest:
            self._inside(char, position)
        elif char not in SPACES:
            self._between(char, position)
        return True

    def _number(self, char: str, position: int) -> bool:
        for chars, then in _NUMBER[self.expect].items():
            if char in chars:
                self.expect = then
                return True
        if self.expect not in _NUMBER_ENDS:
            raise JsonError(position)
        self.expect = "a"
        return False

    def _inside(self, char: str, position: int) -> None:
        """Inside a string, an escape or a literal."""
        if self.expect in "sq":
            if char == '"':
                self.expect = "a" if self.expect == "s" else "c"
            elif char == "\\":
                self.expect = "e" if self.expect == "s" else "r"
            else:
                raise JsonError(position)
        elif self.expect == "l":
            if char != self.rest[0]:
                raise JsonError(position)
            self.rest = self.rest[1:]
            self.expect = "l" if self.rest else "a"
        elif self.rest:
            if char not in "0123456789abcdefABCDEF":
                raise JsonError(position)
            self._end_escape(self.rest[1:])
        elif char in '"\\/bfnrtu':
            self._end_escape("hhhh" if char == "u" else "")
        else:
            raise JsonError(position)

    def _end_escape(self, rest: str) -> None:
        self.rest = rest
        if not rest:
            self.expect = "s" if self.expect == "e" else "q"

    def _between(self, char: str, position: int) -> None:
        """Between tokens."""
        if self.expect in "vV" and not (self.expect == "V" and char == "]"):
            self._begin(char, position)
        elif self.expect in "kK" and char == '"':
            self.expect = "q"
        elif self.expect == "c" and char == ":":
            self.expect = "v"
        elif self.expect == "a" and char == "," and self.stack:
            self.expect = "k" if self.stack[-1] == "{" else "v"
        elif (self.expect in "aK" and char == "}" and self.stack.endswith("{")) or (
            self.expect in "aV" and char == "]" and self.stack.endswith("[")
        ):
            self.stack = self.stack[:-1]
            self.expect, self.has_member = "a", True
        else:
            raise JsonError(position)

    def _begin(self, char: str, position: int) -> None:
        self.has_member = self.has_member or bool(self.stack)
        if char in "{[":
            self.stack += char
            self.expect = "K" if char == "{" else "V"
        elif char == '"':
            self.expect = "s"
        elif char in _LITERALS:
            self.expect, self.rest = "l", _LITERALS[char]
        elif char in "-0":
            self.expect = char
        elif char in "123456789":
            self.expect = "1"
        else:
            raise JsonError(position)
