"""``triptych gateway``."""

import contextlib
from collections.abc import AsyncIterator

from triptych.serving import Service, run_service
from triptych.settings import parse_settings
from triptych_gateway.fleet import Fleet
from triptych_gateway.flows import Panels
from triptych_gateway.http import create_gateway_app
from triptych_gateway.links import Closable
from triptych_gateway.settings import GatewaySettings


def main(args: list[str]) -> int:
    settings = parse_settings(GatewaySettings, args)

    return run_service(lambda: _fleet_service(settings), log_level=settings.log_level)


def _fleet_service(settings: GatewaySettings) -> Service:
    fleet = Fleet(settings)
    app = create_gateway_app(
        fleet.panels,
        max_body_bytes=settings.max_body_bytes,
        api_key=settings.api_key,
        is_ready=fleet.is_ready,
        collectors=(fleet.collector,),
    )
    return Service(name="gateway", app=app, settings=settings, background=fleet.watched)


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
