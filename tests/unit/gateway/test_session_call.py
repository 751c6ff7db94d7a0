"""The call of a session against grpc.aio's server, and against servers that misbehave."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest
import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2.exceptions import ProtocolError

from support.echo_sessions import serving
from support.session_calls import Owner, end_of, until_came
from support.stack import free_ports
from triptych.errors import InvalidRequestError, UnavailableError
from triptych.hops import NO_HOPS, Hops, Tls
from triptych.http2_stream import KeepAlive
from triptych.rpc import RpcServer
from triptych.v1 import generate_pb2, render_pb2
from triptych_gateway.render_session import RenderSession
from triptych_gateway.session_call import session_door

SECRET = b"0123456789abcdef"
SERVICE = "triptych.v1.RenderService"
MESSAGE = render_pb2.TextRequest(body=b"x").SerializeToString()


Behaviour = Callable[
    [AsyncIterator[bytes], grpc.aio.ServicerContext[bytes, bytes]], AsyncIterator[bytes]
]


async def echo(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    """Every message back, until an empty one."""
    async for each in requests:
        if not each:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an émpty message, 100 %")
        yield each


@contextlib.asynccontextmanager
async def server(hops: Hops = NO_HOPS, session: Behaviour = echo) -> AsyncIterator[str]:
    """Where a server of ours does ``session``."""
    rpc = RpcServer([SERVICE])
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(session)
    rpc.server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Session": handler}),)
    )
    port = rpc.bind("127.0.0.1", 0, hops)
    await rpc.start()
    yield f"127.0.0.1:{port}"
    await rpc.stop(0)


async def echoed(target: str, hops: Hops) -> bytes:
    """What the server sends back; AssertionError where it does not."""
    owner = Owner([MESSAGE])
    owner.open(session_door("render", target, "RenderService", hops))
    try:
        await until_came(owner, 1)
    finally:
        assert owner.call is not None
        owner.call.cancel()
    return owner.received[0]


async def test_messages_of_all_sizes_come_whole_and_in_order() -> None:
    sizes = [1, 5, 16_379, 16_380, 65_535, 3, 5_000_000, 1, *range(1, 2000)]
    sent = [bytes([number % 251 + 1]) * size for number, size in enumerate(sizes)]
    async with server() as target:
        owner = Owner(list(sent))
        owner.open(session_door("render", target, "RenderService"))
        await until_came(owner, len(sent))
        assert owner.received == sent
        assert owner.call is not None
        owner.call.cancel()
        assert not owner.end.done()


async def test_call_that_the_server_ends_says_its_status() -> None:
    async with server() as target:
        owner = Owner([b""])
        owner.open(session_door("render", target, "RenderService"))
        assert await end_of(owner) == (
            "the session with render broke (INVALID_ARGUMENT: an émpty message, 100 %)"
        )


async def test_server_that_stops_is_not_reachable() -> None:
    async with server() as target:
        owner = Owner([b"x"])
        owner.open(session_door("render", target, "RenderService"))
        await until_came(owner, 1)
    assert await end_of(owner) == "render is not reachable"


async def test_port_where_nobody_listens_is_not_reachable() -> None:
    (port,) = free_ports(1)
    owner = Owner()
    owner.open(session_door("render", f"127.0.0.1:{port}", "RenderService"))
    assert await end_of(owner) == "render is not reachable"


@contextlib.asynccontextmanager
async def own_server(hops: Hops) -> AsyncIterator[str]:
    """Where sessions are served without grpc.aio."""
    async with serving(hops) as (_, target):
        yield target


@pytest.mark.parametrize("served", [server, own_server])
async def test_secret_and_certificates_open_a_session_and_their_lack_does_not(
    served: Callable[[Hops], contextlib.AbstractAsyncContextManager[str]], tmp_path: Path
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def end(name: str, signed_by: trustme.CA) -> Tls:
        issued = signed_by.issue_cert(name)
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
        return Tls(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "ca.pem")

    panel = Hops(secret=SECRET, tls=end("panel.test", authority))
    known = Hops(secret=SECRET, tls=end("gateway.test", authority), tls_name="panel.test")
    async with served(panel) as target:
        assert await echoed(target, known) == MESSAGE
        for wrong in (
            replace(known, secret=None),
            replace(known, tls=None),
            replace(known, tls_name="other.test"),
            replace(known, tls=end("stranger.test", stranger)),
            replace(known, tls=Tls(None, None, tmp_path / "ca.pem")),
        ):
            with pytest.raises(AssertionError):
                await echoed(target, wrong)


@contextlib.asynccontextmanager
async def raw_server(answer: bytes, *, is_alive: bool = False) -> AsyncIterator[str]:
    """Sends ``answer`` as the body; ``is_alive``: answers pings."""

    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        is_asked = False
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, ProtocolError):
            while data := await reader.read(65_536):
                if is_asked and not is_alive:
                    continue
                for event in connection.receive_data(data):
                    if isinstance(event, RequestReceived):
                        is_asked = True
                        connection.send_headers(1, [(":status", "200")])
                        connection.send_data(1, answer)
                writer.write(connection.data_to_send())

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        host, port = listener.sockets[0].getsockname()
        yield f"{host}:{port}"
    await asyncio.gather(*filter(None, tasks))


async def test_silent_server_is_left_and_one_that_answers_pings_is_not() -> None:
    async with raw_server(b"") as silent, raw_server(b"", is_alive=True) as alive:
        owners = [Owner(), Owner()]
        for owner, target in zip(owners, (silent, alive), strict=True):
            door = session_door("render", target, "RenderService")
            owner.open(replace(door, keep_alive=KeepAlive(0.05, 0.3)))
        assert await end_of(owners[0]) == "render is not reachable"
        await asyncio.sleep(0.5)
        assert not owners[1].end.done()
        assert owners[1].call is not None
        owners[1].call.cancel()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\1\0\0\0\1x", "INVALID_ARGUMENT: a message is compressed"),  # nobody offered that
        (b"\0\xff\xff\xff\xff", "OUT_OF_RANGE: a message has 4,294,967,300 bytes"),
    ],
)
async def test_message_that_cannot_be_taken_ends_the_call(answer: bytes, why: str) -> None:
    async with raw_server(answer) as target:
        owner = Owner()
        owner.open(session_door("render", target, "RenderService"))
        assert why in await end_of(owner)
        assert not owner.received


async def test_server_that_speaks_no_tls_is_not_reachable() -> None:
    async with raw_server(b"") as target:
        door = session_door("render", target, "RenderService")
        owner = Owner()
        owner.open(replace(door, tls=ssl.create_default_context()))
        assert await end_of(owner) == "render is not reachable"


async def test_message_that_cannot_be_read_fails_the_session_and_the_next_one_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    num_calls = 0

    async def answer(
        requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        nonlocal num_calls
        num_calls += 1
        async for each in requests:
            if num_calls == 1:
                yield b"\xff"
                continue
            (submit,) = render_pb2.RenderCommands.FromString(each).submits
            error = InvalidRequestError("no chat").body()
            body = msgspec.json.encode(error)
            refused = generate_pb2.RequestError(
                key=submit.key, grpc_code=InvalidRequestError.grpc_code, body=body
            )
            yield render_pb2.RenderStep(errors=[refused]).SerializeToString()

    async with server(session=answer) as target:
        session = RenderSession(session_door("render", target, "RenderService"))
        with pytest.raises(UnavailableError, match="the session with render broke"):
            await session.render("chat", b"{}", "first", timeout_s=20)
        with pytest.raises(InvalidRequestError, match="no chat"):
            await session.render("chat", b"{}", "second", timeout_s=20)
        session.close()
    assert "the session with render broke" in caplog.text
