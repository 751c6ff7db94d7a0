"""A server on a real socket that gives the answers of a list, one a request, byte for byte."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class CannedServer:
    """``requests``: path, headers and body of what came, in order."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


def answer(status: int, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """An HTTP answer; with a ``length`` over that of the body it breaks off."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status} x", f"content-length: {size}", "connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def refusal(status: int, *headers: str, code: str | None = None) -> bytes:
    error = {"message": f"refused with {status}", "type": "t", "param": None, "code": code}
    return answer(status, json.dumps({"error": error}).encode(), *headers)


@contextlib.contextmanager
def canned_server(answers: Sequence[bytes]) -> Iterator[CannedServer]:
    """Gives ``answers`` in turn, each on a connection that is closed behind it."""
    canned = CannedServer()
    left = iter(answers)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().split()[1].decode()
            headers = {}
            while line := self.rfile.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            body = self.rfile.read(int(headers.get("content-length", 0)))
            canned.requests.append((path, headers, json.loads(body) if body else None))
            self.wfile.write(next(left))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        canned.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield canned
        finally:
            server.shutdown()
            thread.join()
