"""Settings of ``triptych serve``."""

from typing import ClassVar

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from triptych.settings import (
    DeviceSettings,
    LogLevel,
    ModelSettings,
    SecretSettings,
    ServiceSettings,
    TemplateSettings,
    settings_config,
)
from triptych_gateway.settings import AdmissionSettings


class PortSettings(BaseSettings):
    """Mixed into serve's settings: ports of the panels; 0 = any."""

    flag_group: ClassVar[str] = "listening"

    render_http_port: int = Field(8001, ge=0, le=65535, description="port of render for JSON")
    generate_http_port: int = Field(8002, ge=0, le=65535, description="port of generate for JSON")
    derender_http_port: int = Field(8003, ge=0, le=65535, description="port of derender for JSON")
    render_grpc_port: int = Field(9001, ge=0, le=65535, description="port of render for gRPC")
    generate_grpc_port: int = Field(9002, ge=0, le=65535, description="port of generate for gRPC")
    derender_grpc_port: int = Field(9003, ge=0, le=65535, description="port of derender for gRPC")


class ServeSettings(
    ModelSettings,
    TemplateSettings,
    DeviceSettings,
    AdmissionSettings,
    ServiceSettings,
    PortSettings,
    SecretSettings,
):
    """Serve a model on this machine: gateway, render, generate and derender."""

    model_config = settings_config("TRIPTYCH_SERVE_", "serve")
    flag_group: ClassVar[str] = "between the gateway and the panels"
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych serve",
        "triptych serve --model owner/name --device cuda --dtype bfloat16",
    )

    http_port: int = Field(8000, ge=0, le=65535, description="port of the OpenAI gateway")
    max_requests: int = Field(256, ge=1, description="requests in work; above it: 429")
    state_key: SecretStr | None = Field(
        None, min_length=16, description="signs derender's stream_state; default: none"
    )
    log_level: LogLevel = Field("warning", description="at least")
    drain_timeout_s: float = Field(
        2.0, ge=0, le=3600, description="seconds to finish in after Ctrl-C"
    )
