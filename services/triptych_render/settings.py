"""Settings of the render service."""

from typing import ClassVar

from pydantic import Field

from triptych.lines import LineSettings
from triptych.settings import ModelSettings, PanelSettings, TemplateSettings, settings_config


class RenderSettings(ModelSettings, TemplateSettings, LineSettings, PanelSettings):
    """Turn OpenAI requests into token ids and sampling parameters, as a service or on lines.

    With --input each line is a body of /v1/chat/completions (if it has messages) or of
    /v1/completions, and the answer is what the service would send: bodies for generate.
    """

    model_config = settings_config("TRIPTYCH_RENDER_", "render")
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych render --model smollm2",
        "triptych render --input requests.jsonl --output rendered.jsonl",
    )

    http_port: int = Field(8001, ge=0, le=65535, description="port for JSON; 0 = any")
    grpc_port: int = Field(9001, ge=0, le=65535, description="port for gRPC; 0 = any")
