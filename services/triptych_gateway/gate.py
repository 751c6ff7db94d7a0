"""The gateway's gate: API keys, rate limits, and room for so much work at a time."""

import contextlib
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request
from starlette.types import Scope

from triptych.edge import READS
from triptych.errors import OverloadedError, RateLimitError
from triptych.hops import authorization, bearer
from triptych_gateway.buckets import Bucket
from triptych_gateway.keys import ApiKey
from triptych_gateway.metrics import GatewayMetrics

_RETRY_AFTER_S = 1.0
#: The name of requests without a key.
NO_KEY = "none"


class KeySource(Protocol):
    """Where API keys are known."""

    def find(self, given: str) -> ApiKey:
        """Raises UnauthenticatedError for what is no key."""
        ...


@dataclass(frozen=True, slots=True)
class Room:
    """What the gateway works on at a time. ``prompt_tokens`` count from render to the end."""

    requests: int = 1024
    prompt_tokens: int = 4 * 2**20


class Ticket:
    """One request that was let in: who asks, when it came, and the room that it holds.

    A context manager around the request, where it needs room.
    """

    def __init__(self, scope: Scope, key: ApiKey | None, gate: "Gate") -> None:
        self._scope = scope
        self._key = key
        self._gate = gate
        self._num_held = 0
        name = _name(key)
        self._prompt_count = gate.metrics.tokens_of(name, "prompt")
        self._output_count = gate.metrics.tokens_of(name, "output")
        self.came_at = time.perf_counter()

    def __enter__(self) -> None:
        self._gate.requests += 1

    def __exit__(self, *_: object) -> None:
        """Leave the room to others."""
        self._gate.requests -= 1
        self._gate.prompt_tokens -= self._num_held
        self._num_held = 0

    def hold_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Take room for the request's prompts, which are known once it is rendered.

        Raises:
            OverloadedError: there is none beside others.
            RateLimitError: the key's tokens are used up.
        """
        num_tokens = sum(map(len, prompts))
        if self._key is not None:
            _check(self._key.tokens, "tokens")
        self._gate.hold(num_tokens)
        self._num_held = num_tokens
        self._prompt_count.inc(num_tokens)
        self._pay(num_tokens)
        self.show_limits()

    def count_output(self, num_tokens: int) -> None:
        """Count tokens that came from generate; the key pays for them."""
        self._output_count.inc(num_tokens)
        self._pay(num_tokens)

    def show_limits(self) -> None:
        """Tell the key's limits in the headers of the answer, as OpenAI does."""
        if self._key is not None:
            for of, bucket in (("requests", self._key.requests), ("tokens", self._key.tokens)):
                self._scope["triptych.headers"].update(_limit_headers(of, bucket))

    def _pay(self, num_tokens: int) -> None:
        if self._key is not None and self._key.tokens is not None:
            self._key.tokens.take(num_tokens)


class Gate:
    """Lets requests in by their key, within its limits, while there is room.

    Called with a request's scope it is a context manager around the request. What only reads
    needs a key and no room. ``requests`` and ``prompt_tokens`` are in work now.
    """

    def __init__(self, *, keys: KeySource | None, room: Room, metrics: GatewayMetrics) -> None:
        """``keys``: None lets everyone in."""
        self._keys = keys
        self._room = room
        self.metrics = metrics
        self.requests = 0
        self.prompt_tokens = 0

    def __call__(self, scope: Scope) -> AbstractContextManager[None]:
        """Raises what refuses the request."""
        key = self._keys.find(bearer(authorization(scope))) if self._keys else None
        if key is not None:
            scope["triptych.notes"]["key"] = key.name
        ticket = scope["triptych.ticket"] = Ticket(scope, key, self)
        if scope["method"] in READS:
            return contextlib.nullcontext()
        self._admit(ticket, key)
        return ticket

    def hold(self, num_tokens: int) -> None:
        """Take room for prompts; for those of one request there is room in any case.

        Raises:
            OverloadedError: there is none.
        """
        total, most = self.prompt_tokens + num_tokens, self._room.prompt_tokens
        if total > most and self.prompt_tokens:
            raise OverloadedError(
                f"prompts of {total:,} tokens would be in work, limit is {most:,}",
                retry_after_s=_RETRY_AFTER_S,
            )
        self.prompt_tokens = total

    def _admit(self, ticket: Ticket, key: ApiKey | None) -> None:
        if self.requests >= self._room.requests:
            raise OverloadedError(
                f"{self.requests:,} requests are in work, limit is {self._room.requests:,}",
                retry_after_s=_RETRY_AFTER_S,
            )
        if key is not None:
            ticket.show_limits()
            _check(key.requests, "requests")
            _check(key.tokens, "tokens")
            if key.requests is not None:
                key.requests.take(1)
            ticket.show_limits()
        self.metrics.request_admitted(_name(key))


def ticket_of(request: Request) -> Ticket:
    """The ticket that the gate gave to ``request``."""
    ticket: Ticket = request.scope["triptych.ticket"]
    return ticket


def _name(key: ApiKey | None) -> str:
    return NO_KEY if key is None else key.name


def _check(bucket: Bucket | None, of: str) -> None:
    if bucket is not None and bucket.wait_s:
        raise RateLimitError(
            f"the key's limit of {bucket.per_minute:,} {of} a minute is used up",
            retry_after_s=math.ceil(bucket.wait_s),
        )


def _limit_headers(of: str, bucket: Bucket | None) -> dict[str, str]:
    if bucket is None:
        return {}
    return {
        f"x-ratelimit-limit-{of}": str(bucket.per_minute),
        f"x-ratelimit-remaining-{of}": str(max(0, math.floor(bucket.level))),
        f"x-ratelimit-reset-{of}": _duration(bucket.full_in_s),
    }


def _duration(seconds: float) -> str:
    """As OpenAI writes it: ``6m0s``, ``1s``, ``20ms``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
