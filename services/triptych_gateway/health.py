"""Asks a panel's gRPC health service whether it serves."""

from grpc_health.v1 import health_pb2, health_pb2_grpc

from triptych.errors import UnavailableError
from triptych.hops import NO_HOPS, Hops
from triptych.rpc import RpcErrors, open_channel

#: Seconds; whoever asks has a limit of their own.
_TIMEOUT_S = 10.0


class HealthProbe:
    """The health service at ``target``. gRPC shares the connection with other channels to it."""

    def __init__(self, target: str, hops: Hops = NO_HOPS) -> None:
        self._target = target
        self._channel = open_channel(target, hops)
        self._stub = health_pb2_grpc.HealthStub(self._channel)

    async def check(self) -> None:
        """Return when it serves.

        Raises:
            UnavailableError: it is not reachable, or drains.
        """
        async with RpcErrors(self._target):
            request = health_pb2.HealthCheckRequest()
            answer = await self._stub.Check(request, timeout=_TIMEOUT_S)
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise UnavailableError(f"{self._target} does not serve", retry_after_s=1)

    async def close(self) -> None:
        await self._channel.close(None)
