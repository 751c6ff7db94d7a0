"""Who may call a panel, at both of its doors, over real sockets: a secret, certificates, both."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from triptych.drain import Drain
from triptych.errors import SetupError, UnauthenticatedError, UnavailableError
from triptych.hops import NO_HOPS, Hops, Tls, panel_hops
from triptych.http import create_app
from triptych.rpc import RpcErrors, RpcServer, open_channel
from triptych.rpc_edge import RpcEdge
from triptych.serving import Service, running
from triptych.settings import PanelSettings
from triptych.v1 import render_pb2, render_pb2_grpc

SECRET = b"0123456789abcdef"
BEARER = {"authorization": f"Bearer {SECRET.decode()}"}


class Echo(render_pb2_grpc.RenderServiceServicer):
    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    async def Tokenize(
        self, request: render_pb2.TextRequest, context: object
    ) -> render_pb2.TextResponse:
        async with RpcEdge(context, self._drain):  # type: ignore[arg-type]  # grpc's own class
            return render_pb2.TextResponse(body=request.body)


@asynccontextmanager
async def panel(hops: Hops) -> AsyncIterator[tuple[str, str]]:
    """The addresses of a panel's JSON and gRPC doors."""
    app = create_app("render", model=("m", None))

    @app.post("/work")
    async def do_work() -> str:
        return "done"

    rpc = RpcServer(["triptych.v1.RenderService"])
    servicer = Echo(rpc.drain)  # type: ignore[abstract]  # Tokenize alone is called
    render_pb2_grpc.add_RenderServiceServicer_to_server(servicer, rpc.server)
    settings = PanelSettings(drain_timeout_s=0)
    service = Service("render", app=app, settings=settings, hops=hops, rpc=rpc)
    async with running(service):
        yield service.addresses[0], service.addresses[1].removeprefix("grpc://")


async def over_grpc(target: str, hops: Hops) -> bytes:
    """What the panel echoes.

    Raises:
        TriptychError: it refuses, or there is no connection.
    """
    async with open_channel(target, hops) as channel, RpcErrors("the panel"):
        stub = render_pb2_grpc.RenderServiceStub(channel)
        return (await stub.Tokenize(render_pb2.TextRequest(body=b"x"), timeout=20)).body


async def is_serving(target: str, hops: Hops) -> bool:
    """What a probe is told, which knows no secret."""
    async with open_channel(target, replace(hops, secret=None)) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=20
        )
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of a panel's end and of the gateway's, signed by one authority, for ``panel.test``."""

    panel: Tls
    gateway: Tls

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.gateway.ca))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))

    def end(name: str) -> Tls:
        issued = authority.issue_cert(name, "127.0.0.1")
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        return Tls(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")

    return Certificates(panel=end("panel.test"), gateway=end("gateway.test"))


async def test_secret_opens_both_doors_and_its_lack_neither() -> None:
    hops = Hops(secret=SECRET)
    async with panel(hops) as (http, target), httpx.AsyncClient(base_url=http) as client:
        assert await over_grpc(target, hops) == b"x"
        assert (await client.post("/work", headers=BEARER)).status_code == 200
        for wrong in (NO_HOPS, Hops(secret=SECRET[:-1]), Hops(secret=SECRET + b"0")):
            with pytest.raises(UnauthenticatedError):
                await over_grpc(target, wrong)
            refused = await client.post("/work", headers=dict(wrong.credentials))
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                401,
                "invalid_api_key",
            )
        assert (await client.get("/v1/models")).status_code == 401


async def test_probes_and_scrapers_need_no_secret() -> None:
    hops = Hops(secret=SECRET)
    async with panel(hops) as (http, target), httpx.AsyncClient(base_url=http) as client:
        assert await is_serving(target, hops)
        for path in ("/health", "/ready", "/metrics"):
            assert (await client.get(path)).status_code == 200


async def test_certificates_are_needed_at_both_ends(certificates: Certificates) -> None:
    async with panel(Hops(tls=certificates.panel)) as (_, target):
        known = Hops(tls=certificates.gateway)
        assert await over_grpc(target, known) == b"x"
        assert await is_serving(target, known)
        strangers = [
            NO_HOPS,  # no TLS
            Hops(tls=replace(certificates.gateway, cert=None, key=None)),  # no certificate
            Hops(tls=replace(certificates.gateway, ca=None)),  # trusts the usual authorities
            replace(known, tls_name="other.test"),  # wants another panel
        ]
        for stranger in strangers:
            with pytest.raises(UnavailableError):
                await over_grpc(target, stranger)
        assert await over_grpc(target, replace(known, tls_name="panel.test")) == b"x"


async def test_tls_without_an_authority_asks_callers_for_the_secret_alone(
    certificates: Certificates,
) -> None:
    served = Hops(secret=SECRET, tls=replace(certificates.panel, ca=None))
    nameless = replace(certificates.gateway, cert=None, key=None)
    async with panel(served) as (http, target):
        assert await over_grpc(target, Hops(secret=SECRET, tls=nameless)) == b"x"
        with pytest.raises(UnauthenticatedError):
            await over_grpc(target, Hops(tls=nameless))
        async with httpx.AsyncClient(base_url=http, verify=certificates.trusted()) as client:
            assert (await client.post("/work", headers=BEARER)).status_code == 200
            assert (await client.post("/work")).status_code == 401


async def test_json_door_of_mutual_tls_needs_the_secret_and_no_certificate(
    certificates: Certificates,
) -> None:
    for hops, status in (
        (Hops(tls=certificates.panel), 401),  # nobody: JSON cannot show a certificate
        (Hops(tls=certificates.panel, secret=SECRET), 200),
    ):
        async with (
            panel(hops) as (http, _),
            httpx.AsyncClient(base_url=http, verify=certificates.trusted()) as client,
        ):
            assert http.startswith("https://")
            assert (await client.get("/ready")).status_code == 200
            assert (await client.post("/work", headers=BEARER)).status_code == status


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hop_secret_file": "short"}, "has 5 bytes"),
        ({"hop_secret_file": "missing"}, "No such file"),
        ({"tls_cert": "short"}, "belong together"),
        ({"tls_ca": "short"}, "--tls-ca: .*short has no certificate"),
        ({"tls_cert": "short", "tls_key": "short"}, "--tls-cert and --tls-key: "),
        ({"tls_cert": "short", "tls_key": "missing"}, "No such file"),
    ],
)
def test_wrong_files_are_setup_errors(
    settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "short").write_text("12345\n")
    paths = {name: tmp_path / file for name, file in settings.items()}
    with pytest.raises(SetupError, match=message) as error:
        panel_hops(PanelSettings.model_validate(paths))
    assert "12345" not in str(error.value)


def test_panel_without_a_certificate_or_with_another_key_does_not_start(
    certificates: Certificates,
) -> None:
    ours, other = certificates.panel, certificates.gateway
    with pytest.raises(SetupError, match="needs --tls-cert"):
        panel_hops(PanelSettings(tls_ca=ours.ca))
    with pytest.raises(SetupError, match="is not its key "):
        panel_hops(PanelSettings(tls_cert=ours.cert, tls_key=other.key))
    given = PanelSettings(tls_cert=ours.cert, tls_key=ours.key, tls_ca=ours.ca)
    assert panel_hops(given).tls == ours


def test_secret_comes_from_a_file_or_a_setting(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    given: list[dict[str, Any]] = [
        {"hop_secret_file": tmp_path / "secret"},
        {"hop_secret": SECRET.decode()},
        {"hop_secret": f"{SECRET.decode()}\n"},  # as a variable made of the file has it
    ]
    for each in given:
        assert panel_hops(PanelSettings.model_validate(each)) == Hops(secret=SECRET)
    assert panel_hops(PanelSettings()) == NO_HOPS


@pytest.mark.parametrize("secret", ["geheim-für-panels", "s3cret-of-15-ab\n  ", "s3cret\x00" * 4])
def test_secret_that_no_header_carries_is_a_setup_error(secret: str) -> None:
    with pytest.raises(SetupError, match="--hop-secret: ") as error:
        panel_hops(PanelSettings.model_validate({"hop_secret": secret}))
    assert "s3cret" not in str(error.value)
