"""All four services as they are deployed, each on sockets of its own, in a test's event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.generate_runs import load_service
from support.scripted import TextPanels
from support.tiny_models import make_tiny_model
from triptych.hops import NO_HOPS, Hops
from triptych.serving import Listener, Service, running
from triptych_derender.__main__ import create_derender_service
from triptych_derender.settings import DerenderSettings
from triptych_gateway.__main__ import create_fleet_service
from triptych_gateway.settings import GatewaySettings
from triptych_generate.__main__ import create_generate_service
from triptych_generate.settings import GenerateSettings
from triptych_render.__main__ import create_render_service
from triptych_render.settings import RenderSettings

#: SmolLM2's ids.
_VOCAB_SIZE = 49152
_PORTS: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "drain_timeout_s": 2}


@dataclass(frozen=True, slots=True)
class Fleet:
    """The services by name, listening."""

    services: dict[str, Service]
    listeners: dict[str, Listener]

    def http(self, name: str) -> str:
        return self.services[name].addresses[0]

    def grpc(self, name: str) -> str:
        return self.services[name].addresses[1].removeprefix("grpc://")

    async def until_ready(self) -> None:
        """Until the gateway has found its panels."""
        async with httpx.AsyncClient(timeout=20) as client:
            while (await client.get(f"{self.http('gateway')}/ready")).status_code != 200:
                pass

    async def metrics(self, name: str) -> str:
        async with httpx.AsyncClient(timeout=20) as client:
            return (await client.get(f"{self.http(name)}/metrics")).text


def make_generate_model(directory: Path) -> Path:
    """A random model of SmolLM2's ids, small enough to load in a moment."""
    return make_tiny_model("llama", directory, vocab_size=_VOCAB_SIZE)


@asynccontextmanager
async def whole_fleet(
    texts: TextPanels,
    generate_model: Path,
    *,
    hops: Hops = NO_HOPS,
    panel: dict[str, Any] | None = None,
    gateway: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
) -> AsyncIterator[Fleet]:
    """``panel``, ``gateway``: settings of these; ``engine``: options of generate's engine.

    ``hops``: who the gateway is to the panels.
    """
    generate = await asyncio.to_thread(
        load_service,
        generate_model,
        served_model_name=texts.renderer.model,
        **(engine or {}),
    )
    asked = {**_PORTS, **(panel or {})}
    services = {
        "render": create_render_service(texts.renderer, RenderSettings(**asked)),
        "derender": create_derender_service(texts.derenderer, DerenderSettings(**asked)),
        "generate": create_generate_service(generate, GenerateSettings(**asked)),
    }
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet(services, {})
        for name, service in services.items():
            fleet.listeners[name] = await stack.enter_async_context(running(service))
        settings = GatewaySettings(
            http_port=0,
            drain_timeout_s=2,
            probe_every_s=0.1,
            render=fleet.grpc("render"),
            generate=fleet.grpc("generate"),
            derender=fleet.grpc("derender"),
            **(gateway or {}),
        )
        services["gateway"] = create_fleet_service(settings, hops)
        fleet.listeners["gateway"] = await stack.enter_async_context(running(services["gateway"]))
        await fleet.until_ready()
        yield fleet
