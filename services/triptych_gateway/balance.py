"""Which replica gets a request: the least loaded, or the one that has seen the prompt's beginning.

Affinity is rendezvous hashing with bounded load: every gateway ranks the replicas for a prefix in
the same order without talking to the others, a replica that comes or goes moves only its own share,
and a prefix that everybody uses spills to the next in its order (Thaler and Ravishankar 1998;
Mirrokni, Thorup and Zadimoghaddam 2018).
"""

import hashlib
import math
import random
from array import array
from collections.abc import Sequence
from typing import Protocol, TypeVar

from triptych.wire import GenerateRequest

#: Tokens of a KV block, and the most blocks of a prompt that choose its replica.
BLOCK_SIZE = 64
MAX_BLOCKS = 4
#: A replica is passed over when its load would exceed its share of all by this factor …
MAX_SHARE = 1.25
#: … and this many sequences: below it a worker only runs larger batches, and nobody waits.
MIN_BOUND = 4


class Loaded(Protocol):
    """What the choice depends on: sequences, and KV blocks (or 1 each)."""

    @property
    def address(self) -> str: ...

    @property
    def load(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def is_full(self) -> bool: ...


_LoadedT = TypeVar("_LoadedT", bound=Loaded)


def prefix_key(request: GenerateRequest) -> bytes | None:
    """A hash of the prompt's first whole blocks and its salt; None where there is no whole block.

    Only whole blocks are found in a worker's prefix cache by other prompts.
    """
    num_blocks = min(MAX_BLOCKS, request.prompt_len // BLOCK_SIZE)
    if not num_blocks:
        return None
    salt = b"" if request.cache_salt is None else b"salt" + request.cache_salt.encode()
    key = hashlib.blake2b(salt, digest_size=16)
    key.update(array("I", request.token_ids[: num_blocks * BLOCK_SIZE]).tobytes())
    return key.digest()


def least_loaded(replicas: Sequence[_LoadedT]) -> _LoadedT:
    """The one with the least load for its capacity; any of those with equally little."""
    return min(replicas, key=lambda each: (each.load / each.capacity, random.random()))


def by_prefix(replicas: Sequence[_LoadedT], key: bytes) -> _LoadedT:
    """The first in the key's order that is within its bound and not full.

    If all of those are full, the first within its bound: where all wait, waiting for the cache is
    best. One is always within its bound, because not all can have more than their share.
    """
    capacity = sum(each.capacity for each in replicas)
    total = 1 + sum(each.load for each in replicas)
    within = [
        each
        for each in replicas
        if each.load + 1 <= max(MIN_BOUND, math.ceil(MAX_SHARE * total * each.capacity / capacity))
    ]
    open_ones = [each for each in within if not each.is_full] or within
    return max(open_ones, key=lambda each: _score(key, each))


def _score(key: bytes, replica: Loaded) -> float:
    """Weighted rendezvous: the greatest ``-capacity / ln(u)`` wins in proportion to capacity."""
    digest = hashlib.blake2b(replica.address.encode(), key=key, digest_size=8).digest()
    return -replica.capacity / math.log((int.from_bytes(digest) + 0.5) / 2**64)
