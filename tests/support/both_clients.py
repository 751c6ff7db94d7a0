"""Runs the same calls on the blocking client and on the async one."""

import asyncio
from collections.abc import Callable
from typing import Any

from triptych.client.http import Client
from triptych.client.http_async import AsyncClient
from triptych.client.rpc import GenerateClient
from triptych.client.rpc_async import AsyncGenerateClient

#: Gets a client, and gives what its methods give.
Act = Callable[[Any], Any]
HTTP = ["blocking", "async"]


def ask(kind: str, url: str, act: Act, **options: Any) -> Any:
    """What ``act`` gives with a client over HTTP."""
    if kind == "blocking":
        with Client(url, **options) as client:
            return act(client)
    return asyncio.run(_ask_async(AsyncClient(url, **options), act))


def parts(kind: str, url: str, act: Act, **options: Any) -> list[Any]:
    """All parts of the stream that ``act`` gives with a client over HTTP."""
    if kind == "blocking":
        with Client(url, **options) as client, act(client) as stream:
            return list(stream)
    return asyncio.run(_parts_async(AsyncClient(url, **options), act))


def ask_generate(kind: str, target: str, act: Act, **options: Any) -> Any:
    """What ``act`` gives with a client over gRPC."""
    if kind == "blocking":
        with GenerateClient(target, **options) as client:
            return act(client)
    return asyncio.run(_ask_grpc(target, act, options))


async def _ask_async(client: AsyncClient, act: Act) -> Any:
    async with client:
        return await act(client)


async def _parts_async(client: AsyncClient, act: Act) -> list[Any]:
    async with client, act(client) as stream:
        return [part async for part in stream]


async def _ask_grpc(target: str, act: Act, options: dict[str, Any]) -> Any:
    async with AsyncGenerateClient(target, **options) as client:
        return await act(client)
