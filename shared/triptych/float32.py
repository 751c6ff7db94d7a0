"""The one text form of a float32 value in every JSON body (logprobs.md, section 6)."""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import orjson

from triptych.logprobs import MIN_LOGPROB

_MAX = float(np.finfo(np.float32).max)


class Float32Column:
    """Values that came together; their texts are made together, when the first are asked for.

    Making them costs 100 µs where the code for it is in no cache, and then 0.1 µs each.
    """

    def __init__(self, values: list[float]) -> None:
        self._values = values
        self._texts: list[bytes] | None = None

    def part(self, start: int, end: int) -> "Float32Part":
        part = Float32Part(self._values[start:end])
        part.column, part.start = self, start
        return part

    def texts(self, start: int, end: int) -> list[bytes]:
        if self._texts is None:
            self._texts = float32_texts(self._values)
        return self._texts[start:end]


class Float32Part(list[float]):
    """Some values of a column, not to be changed."""

    __slots__ = ("column", "start")
    column: Float32Column
    start: int


def float32_texts(values: Sequence[float]) -> list[bytes]:
    """Each value as the shortest JSON number that reads back as the same float32.

    Minus infinity and NaN leave as -9999.0, plus infinity as the largest float32, minus zero as
    0.0, so that every text is valid JSON.
    """
    if type(values) is Float32Part:
        return values.column.texts(values.start, values.start + len(values))
    if not values:
        return []
    packed = array("f", values)  # a float64 beyond the float32 range becomes infinite
    column = np.frombuffer(packed, dtype=np.float32)
    if 0.0 in packed:
        column = column + np.float32(0)  # -0.0 + 0.0 is 0.0
    text = _dump(column)
    if b"null" in text:  # rare, and nan_to_num alone takes longer than all else here
        text = _dump(np.nan_to_num(column, nan=MIN_LOGPROB, neginf=MIN_LOGPROB, posinf=_MAX))
    return text[1:-1].split(b",")


def _dump(column: npt.NDArray[np.float32]) -> bytes:
    return orjson.dumps(column, option=orjson.OPT_SERIALIZE_NUMPY)
