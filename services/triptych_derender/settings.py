"""Settings of the derender service."""

from pydantic import Field, SecretStr

from triptych.settings import ModelSettings, PanelSettings, TemplateSettings, settings_config


class DerenderSettings(PanelSettings, ModelSettings, TemplateSettings):
    """Run the derender service: token ids and integer logprobs in, OpenAI replies out."""

    model_config = settings_config("TRIPTYCH_DERENDER_", "derender")

    http_port: int = Field(8003, ge=0, le=65535, description="port for JSON; 0 = any")
    grpc_port: int = Field(9003, ge=0, le=65535, description="port for gRPC; 0 = any")
    state_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="key that signs stream_state, the same for all replicas; default: not signed",
    )
    max_body_bytes: int = Field(
        128 * 2**20, ge=1024, description="largest request body, in bytes; above it: 413"
    )
