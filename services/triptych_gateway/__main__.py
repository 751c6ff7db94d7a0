"""``triptych gateway``."""

import contextlib
from collections.abc import AsyncIterator

from triptych.errors import SetupError
from triptych.hops import Hops, read_secret, read_tls
from triptych.serving import Service, run_service
from triptych_gateway.fleet import Fleet
from triptych_gateway.flows import Panels
from triptych_gateway.gate import KeySource, Room
from triptych_gateway.http import create_gateway_app
from triptych_gateway.keys import Keys, KeysFile, RateLimits, make_key
from triptych_gateway.links import Closable
from triptych_gateway.settings import AdmissionSettings, GatewaySettings


def main(settings: GatewaySettings) -> int:
    secret, tls = read_secret(settings), read_tls(settings)
    hops = Hops(secret=secret, tls=tls, tls_name=settings.tls_name)

    return run_service(lambda: create_fleet_service(settings, hops), settings)


def create_fleet_service(settings: GatewaySettings, hops: Hops) -> Service:
    """The gateway over the replicas that ``settings`` name; ``hops``: who it is to them."""
    fleet = Fleet(settings, hops)
    app = create_gateway_app(
        fleet.panels,
        max_body_bytes=settings.max_body_bytes,
        request_timeout_s=settings.request_timeout_s,
        keys=read_keys(settings),
        room=Room(settings.max_requests, settings.max_prompt_tokens),
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
            panels,
            max_body_bytes=settings.max_body_bytes,
            request_timeout_s=settings.request_timeout_s,
            keys=read_keys(settings),
            room=Room(settings.max_requests, settings.max_prompt_tokens),
        ),
        settings=settings,
        background=closing_links,
    )


def read_keys(settings: AdmissionSettings) -> KeySource | None:
    """Who may ask; None: everyone.

    Raises:
        SetupError: the file of keys cannot be read, the key is empty, or limits have no keys.
    """
    limits = RateLimits(settings.requests_per_minute, settings.tokens_per_minute)
    if settings.api_keys_file is not None:
        if settings.api_key is not None:
            raise SetupError("--api-key and --api-keys-file: give one of them")
        return KeysFile(settings.api_keys_file, limits)
    if settings.api_key is not None:
        given = settings.api_key.get_secret_value().strip()  # a bearer token has no space around it
        if not given:
            raise SetupError("--api-key: there is only white space")
        return Keys({given: make_key("default", limits)})
    if limits != RateLimits():
        raise SetupError("limits a minute are those of a key: they need --api-key or a file")
    return None
