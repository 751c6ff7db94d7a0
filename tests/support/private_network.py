"""A network of namespaces for a fleet: a bridge, a host for each replica, names, and doors into it.

Nothing of it is visible to the machine's own network. Linux, as root, with iproute2.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

_CLONE_NEWNET = 0x40000000
_BRIDGE = "10.77.0.1"
_A_RECORD, _INTERNET = 1, 1
#: Seconds; what Docker's own name server says.
_TTL_S = 600
_T = TypeVar("_T")

_numbers = itertools.count()


def can_have_networks() -> bool:
    """Whether this process may make network namespaces."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return False
    done = subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True)
    return done.returncode == 0


class PrivateNetwork:
    """Hosts on a bridge of their own, found by name; ``names`` may change at any time."""

    def __init__(self) -> None:
        self._prefix = f"fleet-{os.getpid()}-{next(_numbers)}"
        self._hub = f"{self._prefix}-hub"
        self._host_numbers = itertools.count(2)
        self._hosts: list[str] = []
        self.names: dict[str, list[str]] = {}
        self.name_server = _BRIDGE
        self._is_up = threading.Event()
        self._stop = asyncio.Event()
        self._doors: list[asyncio.Server] = []
        self._carrying: set[asyncio.Task[Any] | None] = set()

    def __enter__(self) -> "PrivateNetwork":
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "addr", "add", f"{_BRIDGE}/16", "dev", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        self._thread = threading.Thread(target=self._live_in_hub, daemon=True)
        self._thread.start()
        assert self._is_up.wait(120), "the network's thread did not come up"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        for namespace in [*self._hosts, self._hub]:
            _ip("netns", "delete", namespace)

    def add_host(self) -> tuple[str, str]:
        """A new host's namespace and address."""
        number = next(self._host_numbers)
        namespace, address = f"{self._prefix}-{number}", f"10.77.{number // 256}.{number % 256}"
        port = f"host{number}"
        _ip("netns", "add", namespace)
        self._hosts.append(namespace)
        _ip(
            *("link", "add", "eth0", "netns", namespace),
            *("type", "veth", "peer", "name", port, "netns", self._hub),
        )
        _ip("-n", self._hub, "link", "set", port, "master", "bridge", "up")
        _ip("-n", namespace, "addr", "add", f"{address}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", device, "up")
        return namespace, address

    def publish(self, address: str, port: int) -> int:
        """A port of this machine's 127.0.0.1 that leads to ``port`` of a host."""
        listener = socket.create_server(("127.0.0.1", 0))  # made here: it belongs to this network

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with self._kept(), contextlib.closing(writer), contextlib.suppress(OSError):
                inside, outside = await asyncio.open_connection(address, port)
                with contextlib.closing(outside):
                    await asyncio.gather(_pour(reader, outside), _pour(inside, writer))

        self._doors.append(self._call(asyncio.start_server(carry, sock=listener)))
        return int(listener.getsockname()[1])

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Hold the task that runs: nothing else does where both of its sockets are half closed."""
        task = asyncio.current_task()
        self._carrying.add(task)
        try:
            yield
        finally:
            self._carrying.discard(task)

    def _live_in_hub(self) -> None:
        """The thread that lives in the hub's namespace: what it opens is there."""
        with Path(f"/run/netns/{self._hub}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        transport, _ = await self._loop.create_datagram_endpoint(
            lambda: _NameServer(lambda name: self.names.get(name)), local_addr=(_BRIDGE, 53)
        )
        self._is_up.set()
        await self._stop.wait()
        transport.close()
        for door in self._doors:
            door.close()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)


class _NameServer(asyncio.DatagramProtocol):
    """Answers as Docker's: every address of a name (A), nothing for AAAA, NXDOMAIN for others."""

    def __init__(self, addresses_of: Callable[[str], list[str] | None]) -> None:
        self._addresses_of = addresses_of

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._transport.sendto(name_answer(data, self._addresses_of), addr)


def name_answer(query: bytes, addresses_of: Callable[[str], list[str] | None]) -> bytes:
    """The answer to a DNS ``query`` of one question (RFC 1035, section 4)."""
    (query_id,) = struct.unpack_from("!H", query)
    labels, offset = [], 12
    while length := query[offset]:
        labels.append(query[offset + 1 : offset + 1 + length].decode())
        offset += 1 + length
    question = query[12 : offset + 5]
    (kind,) = struct.unpack_from("!H", query, offset + 1)
    known = addresses_of(".".join(labels).lower())
    addresses = (known or []) if kind == _A_RECORD else []
    flags = 0x8580 if known is not None else 0x8583
    header = struct.pack("!6H", query_id, flags, 1, len(addresses), 0, 0)
    records = b"".join(
        struct.pack("!HHHIH", 0xC00C, _A_RECORD, _INTERNET, _TTL_S, 4) + socket.inet_aton(address)
        for address in addresses
    )
    return header + question + records


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Everything from ``source`` to ``sink``, at the pace of the slower one, then its end."""
    with contextlib.suppress(OSError):
        while part := await source.read(65536):
            sink.write(part)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
