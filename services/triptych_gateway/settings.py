"""Settings of the gateway."""

from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from triptych.settings import SecretSettings, ServiceSettings, TlsSettings, settings_config
from triptych_gateway.addresses import split_addresses


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
    render: str = Field(
        "127.0.0.1:9001", description="gRPC addresses of render, host:port, separated by commas"
    )
    generate: str = Field(
        "127.0.0.1:9002",
        description="gRPC addresses of generate, host:port, separated by commas; "
        "http://host:port is a vLLM server",
    )
    derender: str = Field(
        "127.0.0.1:9003", description="gRPC addresses of derender, host:port, separated by commas"
    )
    resolve_every_s: float = Field(
        5.0, gt=0, le=3600, description="seconds between two looks at what host names resolve to"
    )
    probe_every_s: float = Field(
        1.0, gt=0, le=60, description="seconds between two questions to each replica how it is"
    )
    hang_timeout_s: float = Field(
        10.0, gt=0, le=600, description="seconds without any answer after which a replica hangs"
    )
    stall_timeout_s: float = Field(
        120.0, gt=0, le=3600, description="seconds without a step after which a worker hangs"
    )
    come_up_timeout_s: float = Field(
        1.0,
        ge=0,
        le=600,
        description="seconds that a request which has not begun waits while no replica is up",
    )
    take_over_timeout_s: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="seconds that an answer which has begun waits for a replica to go on at",
    )
    tls_name: str | None = Field(
        None, description="name in the panels' certificates; default: the host of each address"
    )

    @field_validator("render", "generate", "derender")
    @classmethod
    def _is_a_list_of_addresses(cls, listed: str, info: ValidationInfo) -> str:
        split_addresses(listed, may_be_json=info.field_name == "generate")
        return listed
