"""A small typed client: ``Client`` over HTTP, ``GenerateClient`` over gRPC, each also async.

What is named here is imported when it is first used: httpx by those of HTTP alone, grpc by those of
gRPC alone (docs/client.md).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych.client.fields import Message
    from triptych.client.http import Client
    from triptych.client.http_async import AsyncClient
    from triptych.client.joining import join_chat, join_completion
    from triptych.client.retries import Retries
    from triptych.client.rpc import GenerateClient
    from triptych.client.rpc_async import AsyncGenerateClient

__all__ = [
    "AsyncClient",
    "AsyncGenerateClient",
    "Client",
    "GenerateClient",
    "Message",
    "Retries",
    "join_chat",
    "join_completion",
]

_MODULES = {
    "AsyncClient": "http_async",
    "AsyncGenerateClient": "rpc_async",
    "Client": "http",
    "GenerateClient": "rpc",
    "Message": "fields",
    "Retries": "retries",
    "join_chat": "joining",
    "join_completion": "joining",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
