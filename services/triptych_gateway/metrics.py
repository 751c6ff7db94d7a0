"""The gateway's figures for ``/metrics``: hops, first tokens, and what each API key uses."""

from typing import TYPE_CHECKING, Literal

from prometheus_client import Counter, Histogram

from triptych.metrics import Labelled

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

TokenKind = Literal["prompt", "output"]
Hop = Literal["render", "generate", "derender"]

_PREFIX = "triptych_gateway"
#: Seconds; from a hop within one machine to a prompt that waited long.
_HOP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1, 3, 10, 30, 100)
_FIRST_TOKEN_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_BETWEEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class GatewayMetrics:
    """Counts and times of one gateway. Labels are hops, kinds, and the names of known keys."""

    def __init__(self) -> None:
        hop_seconds = Histogram(
            f"{_PREFIX}_hop_seconds",
            "seconds until a hop's answer, of generate and of streams its first message",
            ["hop"],
            buckets=_HOP_BUCKETS,
            registry=None,
        )
        self._first_token_seconds = Histogram(
            f"{_PREFIX}_first_token_seconds",
            "seconds from a request's arrival to its first token",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=None,
        )
        self._between_tokens_seconds = Histogram(
            f"{_PREFIX}_between_tokens_seconds",
            "mean seconds between the tokens of a prompt's answer, one value each",
            buckets=_BETWEEN_BUCKETS,
            registry=None,
        )
        key_requests = Counter(
            f"{_PREFIX}_key_requests", "requests let in, by API key", ["key"], registry=None
        )
        key_tokens = Counter(
            f"{_PREFIX}_key_tokens",
            "tokens of prompts and outputs, by API key",
            ["key", "kind"],
            registry=None,
        )
        self._hop_seconds = Labelled(hop_seconds)
        self._key_requests = Labelled(key_requests)
        self._key_tokens = Labelled(key_tokens)
        #: What a registry takes.
        self.collectors: tuple[Collector, ...] = (
            hop_seconds,
            self._first_token_seconds,
            self._between_tokens_seconds,
            key_requests,
            key_tokens,
        )

    def hop_answered(self, hop: Hop, *, seconds: float) -> None:
        self._hop_seconds[(hop,)].observe(seconds)

    def first_token_came(self, *, seconds: float) -> None:
        self._first_token_seconds.observe(seconds)

    def answer_ended(self, *, seconds_between: float) -> None:
        self._between_tokens_seconds.observe(seconds_between)

    def request_admitted(self, key: str) -> None:
        self._key_requests[(key,)].inc()

    def tokens_of(self, key: str, kind: TokenKind) -> Counter:
        """The count of one key's tokens of one kind."""
        return self._key_tokens[key, kind]
