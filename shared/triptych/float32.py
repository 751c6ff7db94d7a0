"""The one text form of a float32 value in every JSON body (logprobs.md, section 6)."""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import orjson

from triptych.logprobs import MIN_LOGPROB

_MAX = float(np.finfo(np.float32).max)


def float32_texts(values: Sequence[float]) -> list[bytes]:
    """Each value as the shortest JSON number that reads back as the same float32.

    Minus infinity and NaN leave as -9999.0, plus infinity as the largest float32, minus zero as
    0.0, so that every text is valid JSON.
    """
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
