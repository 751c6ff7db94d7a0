"""Calls that end under their caller, over a real server."""

import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from support.net import listening
from triptych.errors import UnavailableError
from triptych.http import create_app
from triptych.rpc import RpcErrors, RpcServer, open_channel


async def test_writing_to_a_call_that_its_server_ended_is_unavailable() -> None:
    server = RpcServer(["triptych.v1.RenderService"])
    app = create_app("render", model=("m", None))
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with listening(app, server) as service:
        channel = open_channel(service.addresses[1].removeprefix("grpc://"))
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(request)
        await call.read()
        await server.stop(0)
        await call.code()
        with pytest.raises(UnavailableError, match="render ended the call"):
            async with RpcErrors("render"):
                await call.write(request)
        await channel.close(None)
