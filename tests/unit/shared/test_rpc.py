"""Calls that end under their caller, over a real server."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from support.net import listening
from triptych.errors import InvalidRequestError, SetupError, TriptychError, UnavailableError
from triptych.http import create_app
from triptych.rpc import RpcErrors, RpcServer, open_channel
from triptych.rpc_edge import abort_call
from triptych.v1 import render_pb2, render_pb2_grpc


class Refusing(render_pb2_grpc.RenderServiceServicer):
    async def Tokenize(
        self, request: render_pb2.TextRequest, context: object
    ) -> render_pb2.TextResponse:
        error = InvalidRequestError(request.body.decode(), param="body")
        await abort_call(context, error)  # type: ignore[arg-type]  # grpc's own class


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


class Large(render_pb2_grpc.RenderServiceServicer):
    """Answers with much, and says when it does."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    async def Tokenize(
        self, request: render_pb2.TextRequest, context: object
    ) -> render_pb2.TextResponse:
        self.is_asked.set()
        return render_pb2.TextResponse(body=bytes(30_000_000))


async def test_answer_under_way_goes_out_while_the_server_stops() -> None:
    rpc = RpcServer(["triptych.v1.RenderService"])
    servicer = Large()  # type: ignore[abstract]  # Tokenize alone is called
    render_pb2_grpc.add_RenderServiceServicer_to_server(servicer, rpc.server)
    port = rpc.bind("127.0.0.1", 0)
    await rpc.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = render_pb2_grpc.RenderServiceStub(channel)
        asking = asyncio.ensure_future(stub.Tokenize(render_pb2.TextRequest(), timeout=60))
        await servicer.is_asked.wait()
        await rpc.stop(60)
        assert len((await asking).body) == 30_000_000


async def test_directory_in_which_no_socket_can_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for folder in (long, tmp_path / "missing"):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        rpc = RpcServer(["triptych.v1.RenderService"])
        rpc.bind("127.0.0.1", 0)
        with pytest.raises(SetupError, match="cannot make a socket in TMPDIR"):
            await rpc.start()
        await rpc.stop(0)
    assert list(long.iterdir()) == []


async def refusal(target: str, text: str) -> TriptychError:
    async with open_channel(target) as channel:
        stub = render_pb2_grpc.RenderServiceStub(channel)
        with pytest.raises(TriptychError) as refused:
            async with RpcErrors("render"):
                await stub.Tokenize(render_pb2.TextRequest(body=text.encode()), timeout=20)
    return refused.value


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}", "\N{GRINNING FACE}"])
async def test_error_keeps_its_kind_however_long_its_message(letter: str) -> None:
    server = RpcServer(["triptych.v1.RenderService"])
    servicer = Refusing()  # type: ignore[abstract]  # Tokenize alone is called
    render_pb2_grpc.add_RenderServiceServicer_to_server(servicer, server.server)
    async with listening(create_app("render", model=("m", None)), server) as service:
        error = await refusal(service.addresses[1].removeprefix("grpc://"), letter * 20_000)
    assert (type(error), error.param) == (InvalidRequestError, "body")
    assert set(error.message) == {letter}
    assert len(error.message) > 300
