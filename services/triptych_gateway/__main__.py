"""``triptych gateway``."""

import contextlib
from collections.abc import AsyncIterator

from triptych.serving import Service, run_service
from triptych.settings import parse_settings
from triptych_gateway.flows import Panels
from triptych_gateway.generate_link import generate_link
from triptych_gateway.http import create_gateway_app
from triptych_gateway.links import Closable
from triptych_gateway.over_grpc import GrpcDerender, GrpcRender
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.vocabularies import WithVocabulary


def main(args: list[str]) -> int:
    settings = parse_settings(GatewaySettings, args)

    def start() -> Service:
        timeout_s = settings.request_timeout_s
        render = GrpcRender(settings.render)
        generate = generate_link(settings.generate, timeout_s=timeout_s)
        derender = GrpcDerender(settings.derender, timeout_s=timeout_s)
        panels = Panels(render, WithVocabulary(generate, derender), derender)
        return create_gateway_service(panels, settings, [render, generate, derender])

    return run_service(start, log_level=settings.log_level)


def create_gateway_service(
    panels: Panels, settings: GatewaySettings, links: list[Closable]
) -> Service:
    """The gateway over ``panels``; ``links`` are closed when it ends."""

    @contextlib.asynccontextmanager
    async def closing_links() -> AsyncIterator[None]:
        try:
            yield
        finally:
            for link in links:
                await link.close()

    return Service(
        name="gateway",
        app=create_gateway_app(
            panels, max_body_bytes=settings.max_body_bytes, api_key=settings.api_key
        ),
        settings=settings,
        background=closing_links,
    )
