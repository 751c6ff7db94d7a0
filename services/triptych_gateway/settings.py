"""Settings of the gateway."""

from pydantic import Field, SecretStr

from triptych.settings import ServiceSettings, settings_config


class GatewaySettings(ServiceSettings):
    """Run the OpenAI gateway in front of render, generate and derender (reached over gRPC)."""

    model_config = settings_config("TRIPTYCH_GATEWAY_", "gateway")

    http_port: int = Field(
        8000, ge=0, le=65535, description="port of the OpenAI endpoints; 0 = any"
    )
    render: str = Field("127.0.0.1:9001", description="gRPC address of render, host:port")
    generate: str = Field(
        "127.0.0.1:9002",
        description="gRPC address of generate, host:port; or http://host:port of a vLLM server",
    )
    derender: str = Field("127.0.0.1:9003", description="gRPC address of derender, host:port")
    request_timeout_s: float = Field(
        600.0, gt=0, description="seconds that one answer may take; then 504"
    )
    api_key: SecretStr | None = Field(
        None, description="key that clients must send as a bearer token; default: none needed"
    )
