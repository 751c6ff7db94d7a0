"""Settings of the gateway."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from triptych.settings import SecretSettings, ServiceSettings, TlsSettings, settings_config
from triptych_gateway.addresses import split_addresses


class AdmissionSettings(BaseSettings):
    """Mixed into the settings of what has the gateway's door: who may ask, and how much.

    Each line of the file of keys is ``KEY [NAME] [requests_per_minute=N] [tokens_per_minute=N]``.
    """

    flag_group: ClassVar[str] = "who may ask, and how much"

    api_key: SecretStr | None = Field(
        None, min_length=1, description="bearer token that clients must send; default: none"
    )
    api_keys_file: Path | None = Field(
        None, description="keys and their limits, one a line, reread; default: none"
    )
    requests_per_minute: int | None = Field(
        None, ge=1, description="of one key; above it: 429; default: any number"
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="of one key, both ways; default: any number"
    )
    max_requests: int = Field(1024, ge=1, description="requests in work; above it: 429")
    max_prompt_tokens: int = Field(4 * 2**20, ge=1, description="of prompts in work; above it: 429")
    request_timeout_s: float = Field(
        600.0, gt=0, description="seconds that an answer may take; then 504"
    )


class PanelAddresses(BaseSettings):
    """Mixed into the gateway's settings: where the panels are."""

    flag_group: ClassVar[str] = "panels"

    render: str = Field(
        "127.0.0.1:9001",
        description="HOST:PORT,… over gRPC",
        json_schema_extra={"metavar": "ADDRESSES"},
    )
    generate: str = Field(
        "127.0.0.1:9002",
        description="also http://HOST:PORT of vLLM",
        json_schema_extra={"metavar": "ADDRESSES"},
    )
    derender: str = Field(
        "127.0.0.1:9003",
        description="HOST:PORT,… over gRPC",
        json_schema_extra={"metavar": "ADDRESSES"},
    )
    resolve_every_s: float = Field(
        5.0, gt=0, le=3600, description="seconds until host names are looked up again"
    )
    probe_every_s: float = Field(
        1.0, gt=0, le=60, description="seconds until a replica is asked how it is"
    )
    hang_timeout_s: float = Field(
        10.0, gt=0, le=600, description="a replica silent for so long hangs"
    )
    stall_timeout_s: float = Field(
        120.0, gt=0, le=3600, description="a worker without a step for so long hangs"
    )
    come_up_timeout_s: float = Field(
        1.0, ge=0, le=600, description="seconds to wait while no replica is up"
    )
    take_over_timeout_s: float = Field(
        30.0, ge=0, le=3600, description="seconds to find a replica that goes on"
    )


class GatewaySettings(
    PanelAddresses, AdmissionSettings, ServiceSettings, SecretSettings, TlsSettings
):
    """Run the OpenAI gateway in front of render, generate and derender."""

    model_config = settings_config("TRIPTYCH_GATEWAY_", "gateway")
    flag_group: ClassVar[str] = "between the gateway and the panels"
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych gateway",
        "triptych gateway --generate gpu1:9002,gpu2:9002 --api-keys-file keys.txt",
    )

    http_port: int = Field(
        8000, ge=0, le=65535, description="port of the OpenAI endpoints; 0 = any"
    )
    tls_name: str | None = Field(
        None, description="name in the panels' certificates; default: each host"
    )

    @field_validator("render", "generate", "derender")
    @classmethod
    def _is_a_list_of_addresses(cls, listed: str, info: ValidationInfo) -> str:
        split_addresses(listed, may_be_json=info.field_name == "generate")
        return listed
