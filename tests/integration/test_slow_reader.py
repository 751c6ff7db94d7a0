"""A client that reads a byte a second holds up nobody, and the gateway keeps little for it."""

import asyncio
import json
import re
import socket
from pathlib import Path

import pytest

from bench.client import Connection
from bench.split import CHAT, running_gateway

pytestmark = pytest.mark.model

NUM_SLOW = 32
#: Of each slow client's answer.
NUM_TOKENS = 8000


def body(max_tokens: int) -> bytes:
    asked = {
        "messages": [{"role": "user", "content": "Say hi."}],
        "max_tokens": max_tokens,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": True,
    }
    return json.dumps(asked).encode()


def memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kib) / 1024


async def read_slowly(address: str, begun: asyncio.Event) -> bytes:
    """What a client gets that asks for a long answer and reads a byte a second."""
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.setblocking(False)
        asked = body(NUM_TOKENS)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(asked)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, head.encode() + asked)
        read = b""
        try:
            while part := await loop.sock_recv(client, 1):
                read += part
                begun.set()
                await asyncio.sleep(1)
        except asyncio.CancelledError:
            return read
    raise AssertionError(f"the gateway closed a slow client's stream after {read!r}")


async def fast_answers(address: str, num_answers: int) -> None:
    for _ in range(num_answers):
        end = await Connection(address).last_bytes(CHAT, body(512))
        assert end.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


# If nothing held the worker back, the gateway would keep 55 and 310 MiB more.
@pytest.mark.parametrize(("has_derender", "most_mib"), [(True, 40), (False, 160)])
async def test_slow_reader_slows_only_itself_with_bounded_memory(
    has_derender: bool, most_mib: float
) -> None:
    with running_gateway(has_derender=has_derender, step_ms=0.1) as gateway:
        await asyncio.gather(*(fast_answers(gateway.address, 2) for _ in range(4)))
        before = [memory_mib(pid) for pid in gateway.counted]
        begun = [asyncio.Event() for _ in range(NUM_SLOW)]
        slow = [asyncio.create_task(read_slowly(gateway.address, each)) for each in begun]
        await asyncio.gather(*(each.wait() for each in begun))
        await asyncio.gather(*(fast_answers(gateway.address, 20) for _ in range(4)))
        after = [memory_mib(pid) for pid in gateway.counted]
        for task in slow:
            task.cancel()
        read = await asyncio.gather(*slow)
    assert all(each and b"HTTP/1.1 200 OK\r\n".startswith(each[:17]) for each in read)
    assert all(now - then < most_mib for then, now in zip(before, after, strict=True))
