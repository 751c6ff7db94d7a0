"""Counter-based random draws: a pure function of seed, choice, output position and token id.

A draw depends on no state, so neither on other requests nor on what ran before, and a sequence
that another worker takes over goes on exactly. The key is splitmix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", 2014); a token's number comes from a 32-bit
integer hash of its id and the key (multipliers found by Wellons' hash prospector).
"""

from torch import Tensor

_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1
#: 23 bits and a half step give numbers that float32 holds exactly and that are never 0 or 1.
_BITS = 23


def draw_key(seed: int, choice_index: int, position: int) -> int:
    """The 64-bit key of one output position (from 0) of one choice."""
    key = _splitmix64(seed & _MASK64)
    key = _splitmix64(key ^ choice_index)
    return _splitmix64(key ^ position)


def uniform(key: int) -> float:
    """One number in (0, 1)."""
    return (((key >> 41) & ((1 << _BITS) - 1)) + 0.5) / (1 << _BITS)


def token_uniforms(key: int, token_ids: Tensor) -> Tensor:
    """One float64 number in (0, 1) per token id (int64); the same id always gives the same."""
    mixed = _hash32(token_ids ^ (key & _MASK32))
    mixed = _hash32(mixed ^ (key >> 32))
    return ((mixed >> (32 - _BITS)).double() + 0.5) / (1 << _BITS)


def _splitmix64(state: int) -> int:
    mixed = (state + 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    return mixed ^ (mixed >> 31)


def _hash32(values: Tensor) -> Tensor:
    """Mix the low 32 bits of int64 ``values``; products wrap, and only their low bits are kept."""
    values = values ^ (values >> 16)
    values = (values * 0x7FEB352D) & _MASK32
    values = values ^ (values >> 15)
    values = (values * 0x846CA68B) & _MASK32
    return values ^ (values >> 16)
