"""How the two ends of a hop know each other: a shared secret, certificates, both, or neither."""

import hmac
import ssl
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import grpc
from starlette.types import Scope

from triptych.edge import Gate
from triptych.errors import SetupError, UnauthenticatedError
from triptych.settings import PanelSettings, SecretSettings, TlsSettings

#: The header of HTTP, and the metadata key of gRPC.
AUTHORIZATION = "authorization"
_MIN_SECRET = 16


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of one end: its certificate chain with its key, and who signs the other end's."""

    cert: Path | None
    key: Path | None
    ca: Path | None

    def server_context(self) -> ssl.SSLContext:
        """That of a gRPC port; with a ``ca`` its callers need a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        if self.ca is not None:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Those of a gRPC client; without a ``ca`` it trusts the usual authorities."""
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))

    def client_context(self) -> ssl.SSLContext:
        """What ``channel_credentials`` is, for a session's connection."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        context.set_alpn_protocols(["h2"])
        return context


@dataclass(frozen=True, slots=True)
class Hops:
    """What one end knows. ``tls_name``: the name in the panels' certificates; None: the host's."""

    secret: bytes | None = None
    tls: Tls | None = None
    tls_name: str | None = None

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        """What a caller sends, as headers or metadata."""
        if self.secret is None:
            return ()
        return ((AUTHORIZATION, f"Bearer {self.secret.decode()}"),)

    def check(self, authorization: str) -> None:
        """Let a caller in who sent ``authorization``.

        Raises:
            UnauthenticatedError: there is a secret, and this is another; takes constant time.
        """
        given = bearer(authorization).encode("utf-8", "replace")
        if self.secret is not None and not hmac.compare_digest(given, self.secret):
            raise UnauthenticatedError("the hop secret is needed as a bearer token")

    def json_gate(self) -> Gate | None:
        """Who may call a panel's JSON door; None: everyone.

        Its TLS asks for no certificates, since probes have none: where callers of gRPC need one,
        callers of JSON need the secret, and without a secret nobody may call.
        """
        if self.secret is None and (self.tls is None or self.tls.ca is None):
            return None

        def gate(scope: Scope) -> "nullcontext[None]":
            if self.secret is None:
                raise UnauthenticatedError("callers of JSON need a hop secret, and none is set")
            self.check(authorization(scope))
            return nullcontext()

        return gate


#: Neither a secret nor certificates.
NO_HOPS = Hops()


def panel_hops(settings: PanelSettings) -> Hops:
    """What a panel knows.

    Raises:
        SetupError: a file cannot be read, the secret is too short, or a certificate is missing.
    """
    tls = read_tls(settings)
    if tls is not None and tls.cert is None:
        raise SetupError("--tls-ca: a panel needs --tls-cert and --tls-key of its own, too")
    return Hops(secret=read_secret(settings), tls=tls)


def read_secret(settings: SecretSettings) -> bytes | None:
    """The hop secret, without the white space around it.

    Raises:
        SetupError: its file cannot be read, or it is too short or no plain text.
    """
    flag, secret = "--hop-secret-file", _read(settings.hop_secret_file)
    if settings.hop_secret is not None:
        flag, secret = "--hop-secret", settings.hop_secret.get_secret_value().encode()
    if secret is None:
        return None
    secret = secret.strip()
    if len(secret) < _MIN_SECRET or not secret.isascii() or not secret.decode().isprintable():
        raise SetupError(
            f"{flag}: the secret has {len(secret)} bytes; it must be at least "
            f"{_MIN_SECRET} printable characters of ASCII"
        )
    return secret


def read_tls(settings: TlsSettings) -> Tls | None:
    """The certificates, after a look at each file.

    Raises:
        SetupError: a file cannot be read or is none of its kind, or there is a certificate without
            its key.
    """
    paths = (settings.tls_cert, settings.tls_key, settings.tls_ca)
    if not any(paths):
        return None
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SetupError("--tls-cert and --tls-key belong together")
    for path in paths:
        _read(path)
    tls = Tls(*paths)
    _check_pem(tls)
    return tls


def authorization(scope: Scope) -> str:
    """The header of an HTTP request, empty if there is none."""
    return _find(scope["headers"], AUTHORIZATION.encode()).decode("latin-1")


def bearer(authorization: str) -> str:
    """The token of a bearer header, empty for other schemes."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_pem(tls: Tls) -> None:
    """Look into files that gRPC takes unseen, to refuse every connection later without a word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
    except ssl.SSLError as error:
        raise SetupError(
            f"--tls-cert and --tls-key: {tls.cert} is no certificate in PEM, or {tls.key} is not "
            f"its key without a passphrase"
        ) from error
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except ssl.SSLError as error:
        raise SetupError(f"--tls-ca: {tls.ca} has no certificate in PEM") from error


def _find(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from error
