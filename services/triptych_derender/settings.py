"""Settings of the derender service."""

from typing import ClassVar

from pydantic import Field, SecretStr

from triptych.lines import LineSettings
from triptych.settings import ModelSettings, PanelSettings, TemplateSettings, settings_config


class DerenderSettings(ModelSettings, TemplateSettings, LineSettings, PanelSettings):
    """Turn token ids and integer logprobs into OpenAI replies, as a service or on lines.

    With --input each line is a body of the service, {"generate_response": …, "chat_request": …} or
    {"generate_responses": […], "completion_request": …}, or a bare answer of generate.
    """

    model_config = settings_config("TRIPTYCH_DERENDER_", "derender")
    flag_group: ClassVar[str] = "streams"
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych derender --model smollm2",
        "triptych derender --input answers.jsonl --output replies.jsonl",
    )

    http_port: int = Field(8003, ge=0, le=65535, description="port for JSON; 0 = any")
    grpc_port: int = Field(9003, ge=0, le=65535, description="port for gRPC; 0 = any")
    state_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="signs stream_state; one for all; default: none",
    )
    max_body_bytes: int = Field(128 * 2**20, ge=1024, description="of a request; above it: 413")
