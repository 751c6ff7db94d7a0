"""The HTTP plumbing over real sockets: errors, ids, limits, streams, and clients that leave."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import httpx
import msgspec
import pytest
from fastapi import FastAPI, Request, Response
from starlette.types import Message, Scope

from support.net import http_client, listening
from triptych import sse
from triptych.errors import InvalidRequestError, OverloadedError, SetupError, UnauthenticatedError
from triptych.http import create_app, decode_json, json_response, read_body, unless_gone
from triptych.serving import Service, running
from triptych.settings import ServiceSettings
from triptych.wire import GenerateRequest

MAX_BODY = 2048


class Left:
    """Notes whether a handler's work was cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def forever(self) -> bytes:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return b""


def make_app(left: Left | None = None) -> FastAPI:
    app = create_app("test", model=("m", 7))

    @app.post("/decode")
    async def decode(request: Request) -> Response:
        decode_json(await read_body(request, MAX_BODY), GenerateRequest)
        return json_response(b"{}")

    @app.post("/busy")
    async def busy() -> Response:
        raise OverloadedError("9 wait, limit is 8", retry_after_s=3)

    @app.post("/broken")
    async def broken() -> Response:
        raise RuntimeError("secret detail")

    @app.get("/stream/{ending}")
    async def stream(ending: str) -> Response:
        async def frames() -> AsyncGenerator[bytes, None]:
            if ending == "refused":
                raise InvalidRequestError("no")
            yield sse.frame([b'{"a":1}'])
            if ending == "error":
                raise InvalidRequestError("too late")
            if ending == "crash":
                raise RuntimeError("secret detail")
            if ending == "hang" and left is not None:
                await left.forever()
            yield sse.DONE

        return await sse.primed(frames())

    @app.get("/wait")
    async def wait(request: Request) -> Response:
        assert left is not None
        return json_response(await unless_gone(request, left.forever()))

    return app


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b'"text"', None),
        (b"[1]", None),
        (b"\xff", None),
        (b"[" * 2000, None),
        (b"{}", "token_ids"),
        (b'{"token_ids": "a", "sampling_params": {}}', "token_ids"),
        (b'{"token_ids": [1, "a"], "sampling_params": {}}', "token_ids[1]"),
        (b'{"token_ids": [1], "sampling_params": {"top_p": "x"}}', "sampling_params.top_p"),
    ],
)
async def test_bad_json_is_a_400_with_its_path(body: bytes, param: str | None) -> None:
    async with http_client(make_app()) as client:
        answer = await client.post("/decode", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


async def test_statuses_and_headers_of_errors() -> None:
    async with http_client(make_app()) as client:
        busy = await client.post("/busy")
        broken = await client.post("/broken")
        missing = await client.get("/nope")
        wrong_method = await client.get("/decode")
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "3")
    assert busy.json()["error"]["message"] == "9 wait, limit is 8"
    assert broken.status_code == 500
    assert "secret" not in broken.text
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")


async def test_a_slash_too_many_leads_to_no_other_address() -> None:
    """A proxy may have another scheme, host and prefix than the service sees."""
    async with http_client(make_app()) as client:
        asked = await client.post("/decode/", content=b"{}")
        page = await client.get("/docs/")
    assert (asked.status_code, asked.json()["error"]["code"]) == (404, "not_found")
    assert (page.status_code, page.headers["location"]) == (307, "../docs")


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/v1/models", "/docs"])
async def test_head_is_answered_as_get_without_the_body(path: str) -> None:
    async with http_client(make_app()) as client:
        got = await client.get(path)
        head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers.get("content-length") == got.headers.get("content-length")


@pytest.mark.parametrize("served", ["m", "owner/name"])
async def test_one_model_is_served_by_its_name_and_no_other(served: str) -> None:
    app = create_app("test", model=(served, 7))
    async with http_client(app) as client:
        listed = await client.get("/v1/models")
        found = await client.get(f"/v1/models/{served}")
        missing = await client.get("/v1/models/owner/other")
    assert found.json() == listed.json()["data"][0]
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_body_over_the_limit_is_a_413_naming_limit_and_value(is_chunked: bool) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(6):
            yield b" " * 500

    async with http_client(make_app()) as client:
        content = pieces() if is_chunked else b" " * 3000
        answer = await client.post("/decode", content=content)
    assert answer.status_code == 413
    assert "limit is 2,048" in answer.json()["error"]["message"]


async def test_request_id_is_kept_when_sane_and_made_otherwise() -> None:
    async with http_client(make_app()) as client:
        kept = await client.post("/busy", headers={"x-request-id": "run-7/a"})
        made = await client.post("/busy", headers={"x-request-id": 'bad id "\n'.strip()})
    assert kept.headers["x-request-id"] == "run-7/a"
    assert made.headers["x-request-id"] not in {"", 'bad id "'}


def closed(scope: Scope) -> AbstractContextManager[None]:
    raise UnauthenticatedError("no")


async def test_gate_is_asked_before_all_but_open_paths() -> None:
    app = create_app("test", model=("m", 7), gate=closed, open_prefixes=("/pages",))

    @app.get("/pages/{name}")
    async def page(name: str) -> str:
        return name

    async with http_client(app) as client:
        statuses = {
            path: (await client.get(path)).status_code
            for path in ("/health", "/metrics", "/docs", "/pages/a", "/v1/models", "/nowhere")
        }
        refused = await client.post("/v1/models", content=b"never read")
    assert list(statuses.values()) == [200, 200, 200, 200, 401, 401]
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("origins", [None, "https://a.test, https://b.test", "*"])
async def test_pages_of_other_origins_may_call_only_where_they_are_named(
    origins: str | None,
) -> None:
    settings = ServiceSettings(http_port=0, drain_timeout_s=0, cors_origins=origins)
    asked = {"origin": "https://b.test", "access-control-request-method": "POST"}
    app = create_app("test", model=("m", 7), gate=closed)
    async with (
        running(service := Service(name="test", app=app, settings=settings)),
        httpx.AsyncClient(base_url=service.addresses[0]) as client,
    ):
        before = await client.options("/v1/models", headers=asked)
        answer = await client.get("/v1/models", headers={"origin": "https://b.test"})
        other = await client.get("/v1/models", headers={"origin": "https://c.test"})
    allowed = [each.headers.get("access-control-allow-origin") for each in (answer, other)]
    if origins is None:
        assert (before.status_code, allowed) == (401, [None, None])
    else:
        assert before.status_code == 200
        assert allowed == (["*", "*"] if origins == "*" else ["https://b.test", None])
        assert "x-ratelimit-remaining-tokens" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers


async def test_common_endpoints() -> None:
    async with http_client(make_app()) as client:
        await client.post("/busy")
        pages = {
            path: await client.get(path)
            for path in ("/health", "/ready", "/version", "/v1/models", "/metrics")
        }
    assert all(page.status_code == 200 for page in pages.values())
    model = pages["/v1/models"].json()["data"][0]
    assert (model["id"], model["max_model_len"]) == ("m", 7)
    counted = 'triptych_test_requests_total{endpoint="/busy",status="429"} 1.0'
    assert counted in pages["/metrics"].text


async def test_stream_ends_with_done() -> None:
    async with http_client(make_app()) as client:
        answer = await client.get("/stream/well")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == 'data: {"a":1}\n\ndata: [DONE]\n\n'


async def test_refusal_before_the_first_frame_keeps_its_status() -> None:
    async with http_client(make_app()) as client:
        answer = await client.get("/stream/refused")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "no")


@pytest.mark.parametrize(("ending", "message"), [("error", "too late"), ("crash", "internal")])
async def test_failure_in_a_stream_is_one_error_event_and_the_end(
    ending: str, message: str
) -> None:
    async with http_client(make_app()) as client:
        answer = await client.get(f"/stream/{ending}")
    first, last = answer.text.strip().split("\n\n")
    assert first == 'data: {"a":1}'
    name, data = last.split("\n")
    assert name == "event: error"
    error = msgspec.json.decode(data.removeprefix("data: "))["error"]
    assert error["message"].startswith(message)


@pytest.mark.parametrize("path", ["/wait", "/stream/hang"])
async def test_work_is_cancelled_when_the_client_leaves(path: str) -> None:
    left = Left()
    async with listening(make_app(left)) as service:
        host, port = service.addresses[0].removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asyncio.wait_for(left.started.wait(), 5)
        writer.transport.abort()
        await asyncio.wait_for(left.cancelled.wait(), 5)


async def test_keep_alive_comments_fill_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.05)
    left = Left()
    async with (
        http_client(make_app(left)) as client,
        client.stream("GET", "/stream/hang") as answer,
    ):
        seen = b""
        async for part in answer.aiter_bytes():
            seen += part
            if seen.count(sse.KEEP_ALIVE) == 2:
                break
    assert seen.startswith(b'data: {"a":1}\n\n')


async def test_one_comment_waits_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)
    sent: list[bytes] = []

    async def frames() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"data: 1\n\n"

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.sleep(0.2)
        return {"type": "http.disconnect"}

    response = await sse.primed(frames())
    await response({"type": "http", "triptych.notes": {}}, receive, send)
    assert sent == [b"data: 1\n\n", sse.KEEP_ALIVE]


async def test_port_in_use_is_a_setup_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = ServiceSettings(http_port=taken.getsockname()[1])
        service = Service(name="test", app=make_app(), settings=settings)
        with pytest.raises(SetupError, match=r"cannot listen on 127.0.0.1:\d+: Address already"):
            async with running(service):
                pass


async def test_port_is_held_before_the_service_starts() -> None:
    """Two that start together: the second is told, and does not wait for ever."""

    @asynccontextmanager
    async def background() -> AsyncIterator[None]:
        port = int(service.addresses[0].rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port)).close()
        yield

    service = Service("test", app=make_app(), settings=ServiceSettings(), background=background)
    async with running(service):
        pass


async def test_log_line_has_the_id_and_no_body(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="triptych.test"):
        async with http_client(make_app()) as client:
            await client.post(
                "/decode", content=b'{"prompt": "secret"}', headers={"x-request-id": "r-9"}
            )
    (line,) = [record.getMessage() for record in caplog.records if "/decode" in record.getMessage()]
    assert "id=r-9" in line
    assert "400" in line
    assert "secret" not in caplog.text


async def test_path_writes_no_field_of_its_own_into_the_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="triptych.test"):
        async with http_client(make_app()) as client:
            await client.get("/v1/models/m%20200%201.0%20ms%20id=1%20key=alice")
            await client.get("/v1/models/" + "long" * 999)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("GET /v1/models/m%20200%201.0%20ms%20id=1%20key=alice 404 ")
    assert len(lines[1]) < 400


@pytest.mark.parametrize("path", ["/wait", "/stream/hang"])
async def test_answer_that_outlasts_the_shutdown_limit_says_so(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    left = Left()
    async with httpx.AsyncClient(timeout=20) as client:
        async with listening(make_app(left)) as service:
            asking = asyncio.create_task(client.get(service.addresses[0] + path))
            await asyncio.wait_for(left.started.wait(), 5)
        answer = await asking
    assert left.cancelled.is_set()
    assert answer.status_code == (503 if path == "/wait" else 200)
    assert "the server is stopping" in answer.text
    assert "Exception in ASGI" not in caplog.text


async def test_client_sees_a_server_that_stops() -> None:
    async with listening(make_app()) as service:
        address = service.addresses[0]
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(address)
