"""Which replica gets a request: the least loaded, or the one that has seen the prompt's beginning.

Affinity is consistent hashing with bounded load: every gateway has the same order of replicas for a
prefix without talking to the others (``ring``), a replica that comes or goes moves only its own
share, and a prefix that everybody uses spills to the next in its order (Mirrokni, Thorup and
Zadimoghaddam 2018).
"""

import hashlib
import itertools
import math
import random
from array import array
from collections.abc import Collection, Set
from operator import attrgetter
from typing import Protocol, TypeVar

from triptych.wire import GenerateRequest
from triptych_gateway.ring import Member, Ring

#: Tokens of a KV block, and the most blocks of a prompt that choose its replica.
BLOCK_SIZE = 64
MAX_BLOCKS = 4
#: A replica is passed over when its load would exceed its share of all by this factor …
MAX_SHARE = 1.25
#: … and this many sequences: below it a worker only runs larger batches, and nobody waits.
MIN_BOUND = 4
#: Replicas of a key's order that are looked at, so that a fleet where all are full costs no more.
MAX_LOOKED_AT = 16


class Loaded(Member, Protocol):
    """What the choice depends on: sequences, and KV blocks (or 1 each)."""

    @property
    def load(self) -> int: ...

    @property
    def is_full(self) -> bool: ...


_LoadedT = TypeVar("_LoadedT", bound=Loaded)

_LOAD, _CAPACITY = attrgetter("load"), attrgetter("capacity")


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


def least_loaded(replicas: Collection[_LoadedT]) -> _LoadedT:
    """The one with the least load for its capacity; any of those with equally little."""
    shares = [each.load / each.capacity for each in replicas]
    least = min(shares)
    return random.choice(
        [each for each, share in zip(replicas, shares, strict=True) if share == least]
    )


def by_prefix(ring: Ring[_LoadedT], replicas: Set[_LoadedT], key: bytes) -> _LoadedT:
    """The first of ``replicas`` in the key's order that is within its bound and not full.

    If all of those looked at are full, the first within its bound: where all wait, waiting for the
    cache is best. If none is within it, the least loaded, which always is, because not all can have
    more than their share. ``replicas`` are some of the ring's.
    """
    total = 1 + sum(map(_LOAD, replicas))
    for_each = MAX_SHARE * total / sum(map(_CAPACITY, replicas))
    first = None
    near = (each for each in ring.order(key) if each in replicas)
    for each in itertools.islice(near, min(MAX_LOOKED_AT, len(replicas))):
        if each.load + 1 <= max(MIN_BOUND, math.ceil(for_each * each.capacity)):
            if not each.is_full:
                return each
            first = first or each
    return first or least_loaded(replicas)
