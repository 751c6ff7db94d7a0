"""A gRPC channel whose calls carry metadata, without the cost of interceptors.

An interceptor of grpc.aio makes a task for every call, and more for a stream; this adds to a call's
metadata once.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

Pairs = Sequence[tuple[str, str]]


class CarryingChannel(grpc.aio.Channel):
    """``channel``, whose calls send what ``carried`` gives at their start beside their own."""

    def __init__(self, channel: grpc.aio.Channel, carried: Callable[[], Pairs]) -> None:
        self._channel = channel
        self._carried = carried

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._carrying(self._channel.stream_stream(*args, **kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._channel.__aexit__(exc_type, exc_val, exc_tb)

    def _carrying(self, call: Any) -> Any:
        def with_more(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            more = (*(metadata or ()), *self._carried())
            return call(*args, metadata=more or None, **kwargs)

        return with_more
