"""Settings of the gateway."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from triptych.settings import SecretSettings, ServiceSettings, TlsSettings, settings_config


class AdmissionSettings(BaseSettings):
    """Mixed into the settings of what has the gateway's door: who may ask, and how much."""

    request_timeout_s: float = Field(
        600.0, gt=0, description="seconds that one answer may take; then 504"
    )
    api_key: SecretStr | None = Field(
        None,
        description="key that clients must send as a bearer token; default: none needed",
    )
    api_keys_file: Path | None = Field(
        None,
        description="a file of keys, read again when it changes: KEY [NAME] "
        "[requests_per_minute=N] [tokens_per_minute=N] a line",
    )
    requests_per_minute: int | None = Field(
        None, ge=1, description="requests of one key; above it: 429; default: any number"
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="tokens of one key, prompts and outputs; default: any number"
    )
    max_requests: int = Field(1024, ge=1, description="requests in work; above it: 429")
    max_prompt_tokens: int = Field(
        4 * 2**20, ge=1, description="tokens of the prompts in work; above it: 429"
    )


class GatewaySettings(ServiceSettings, SecretSettings, TlsSettings, AdmissionSettings):
    """Run the OpenAI gateway in front of render, generate and derender (reached over gRPC)."""

    model_config = settings_config("TRIPTYCH_GATEWAY_", "gateway")

    http_port: int = Field(
        8000, ge=0, le=65535, description="port of the OpenAI endpoints; 0 = any"
    )
    render: str = Field("127.0.0.1:9001", description="gRPC address of render, host:port")
    generate: str = Field("127.0.0.1:9002", description="gRPC address of generate, host:port")
    derender: str = Field("127.0.0.1:9003", description="gRPC address of derender, host:port")
    tls_name: str | None = Field(
        None, description="name in the panels' certificates; default: the host of each address"
    )
